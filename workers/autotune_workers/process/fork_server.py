"""The fork server: a process that has imported torch and the training loop once, and forks a rank
whenever one is asked for.

Importing takes seconds of CPU per process, a fork milliseconds: a gang of eight starts about as
fast as a single rank, and a rank that had to be killed is replaced at once. The server itself never
trains, starts no thread and touches no GPU, so that its forks are clean; ranks on GPUs are started
as processes of their own. It reaps its children and reports their exit status. They end with it,
and it ends with its owner. `children.RankForkServer` is the owner's side.

    owner -> server   {"environment": {...}, "arguments": {...}}, with the descriptors of channel and log
    server -> owner   {"pid": N} in answer, {"pid": N, "code": C} at the end of a child
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from autotune_workers.gang.wire import Lines, to_line
from autotune_workers.process.machine import die_with_parent


def main() -> None:
    """Entry of the process."""
    channel, parent, arguments = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    die_with_parent(parent)
    faulthandler.enable()  # an owner that aborts a server which hangs reads where it hung
    from autotune_workers.process.rank import preload

    owner = socket.socket(fileno=channel)
    preload(arguments["trial"], arguments["collectives"])
    gc.collect()
    gc.freeze()  # collections in the ranks look at the trial's own objects only, and leave the shared pages shared
    serve(owner)


def serve(owner: socket.socket) -> None:
    """Forks on request and reaps until the owner is gone."""
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    while True:
        waiting: list[Any] = [owner, woken]
        readable, _, _ = select.select(waiting, [], [])
        if woken in readable:
            os.read(woken, 4096)
            _reap(owner)
        if owner in readable:
            request, descriptors, _, _ = socket.recv_fds(owner, 1 << 16, 2)
            if not request:
                os._exit(0)
            for message in Lines().feed(request):
                _fork_rank(owner, message, descriptors, (woken, waker))
            for descriptor in descriptors:
                os.close(descriptor)


def _reap(owner: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        owner.sendall(to_line({"pid": pid, "code": os.waitstatus_to_exitcode(status)}))


def _fork_rank(
    owner: socket.socket, message: Mapping[str, Any], descriptors: list[int], pipe: tuple[int, int]
) -> None:
    server = os.getpid()
    pid = os.fork()
    if pid:
        owner.sendall(to_line({"pid": pid}))
        return
    try:
        die_with_parent(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        channel, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        for descriptor in (log, *pipe):
            os.close(descriptor)
        owner.close()
        os.environ.update(message["environment"])
        from autotune_workers.process.rank import serve_rank

        serve_rank(socket.socket(fileno=channel), **message["arguments"])
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
