"""The fork server: a process that imports torch and the training loop once, and forks a rank on
request.

Importing takes seconds of CPU per process, a fork milliseconds: eight ranks start about as fast as
one, and a killed rank is replaced at once. The server never trains, starts no thread and uses no
GPU, so that it can be forked safely; ranks on GPUs are separate processes. It reaps its children
and reports their exit status. They end when it ends, and it ends with its owner.
`children.RankForkServer` is the owner's side.

    owner -> server   {"environment": {...}, "arguments": {...}}, with the descriptors of the channel and the log
    server -> owner   {"pid": N} as the answer, {"pid": N, "code": C} when a child has ended
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
    """Entry point of the fork server."""
    channel, parent, arguments = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    die_with_parent(parent)
    faulthandler.enable()  # if the owner aborts a hanging server, its stack is printed
    from autotune_workers.process.rank import preload

    owner = socket.socket(fileno=channel)
    preload(arguments["trial"], arguments["collectives"])
    gc.collect()
    gc.freeze()  # collections in the ranks scan only the trial's objects, so that shared pages stay shared
    serve(owner)


def serve(owner: socket.socket) -> None:
    """Forks ranks on request and reaps them until the owner is gone."""
    wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_writer)
    while True:
        waiting: list[Any] = [owner, wake_reader]
        readable, _, _ = select.select(waiting, [], [])
        if wake_reader in readable:
            os.read(wake_reader, 4096)
            _reap(owner)
        if owner in readable:
            request, descriptors, _, _ = socket.recv_fds(owner, 1 << 16, 2)
            if not request:
                os._exit(0)
            for message in Lines().feed(request):
                _fork_rank(owner, message, descriptors, (wake_reader, wake_writer))
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
