"""Child processes that become ranks: forked from a fork server (`fork_server`), or started on their
own, because a GPU forbids forking.

Nobody waits for a start: a forked child has no process number until the server reports it, and a
signal that is sent before that is kept. The server is started with the first child, and again when
it was lost or no longer answers. Its children are lost with it: the kernel kills them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autotune_workers.gang.wire import Lines, to_line
from autotune_workers.process.machine import interface_of, is_alive

LOG = logging.getLogger(__name__)
_PRIVATE = ("AUTOTUNE_", "PGPASS", "RAY_AUTH_", "TORCHELASTIC_", "PET_RDZV_")
"""beginnings of names"""
_LAUNCHERS = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT",
})  # fmt: skip
"""what a launcher tells its ranks, and an operator of training jobs torchrun (`PET_`): of the one
that started this process it would be wrong for a trial's"""
OF_A_JOB = ("SLURM_", "PMI_", "PMI2_", "PMIX_", "OMPI_")
"""beginnings of the names by which a scheduler or MPI tells a process its place in a job. Trainers
take them for their own: Lightning refuses ranks that differ from the job's tasks, and lets Slurm
start the job anew"""
ANSWER_S = 60.0
"""longest time to a server's answer, which takes milliseconds; to its first one it takes the time
to import torch"""
FIRST_ANSWER_S = 300.0
_LOOPBACK = re.compile(r"127\.|::1$")


def inherited_environment(
    *, with_job: bool = False, of: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Our environment without secrets of ours (settings, passwords of the database, Ray's token)
    and other launchers' variables; `with_job`: with those of the job that this process belongs to,
    by which `srun` starts a step of it. `of`: another process's in the place of ours."""
    kept_back = _PRIVATE if with_job else (*_PRIVATE, *OF_A_JOB)
    told = os.environ if of is None else of
    return {
        name: value
        for name, value in told.items()
        if not (name.startswith(kept_back) or name in _LAUNCHERS)
    }


def rank_environment(extra: Mapping[str, str], *, host: str) -> dict[str, str]:
    """The environment of a rank: what is inherited, and where our packages are."""
    kept = inherited_environment()
    roots = {
        str(Path(sys.modules[name].__path__[0]).resolve().parent)
        for name in ("autotune", "autotune_workers")
    }
    path = os.pathsep.join([*sorted(roots), *filter(None, [kept.get("PYTHONPATH", "")])])
    if _LOOPBACK.match(host):
        interface = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    elif "GLOO_SOCKET_IFNAME" not in kept and (name := interface_of(host)):
        # where the own host name does not resolve, gloo would take loopback
        interface = {"GLOO_SOCKET_IFNAME": name}
    else:
        interface = {}
    return {
        **kept,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # the trial itself says how many threads it has
        **interface,
        **extra,
    }


def _start_module(
    spawner: ThreadPoolExecutor,
    name: str,
    channel: socket.socket,
    arguments: Mapping[str, str],
    *,
    stdout: int,
    stderr: int,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """A process of that module of this package, which takes channel, parent and arguments from its
    command line."""
    module = f"autotune_workers.process.{name}"
    command = [
        sys.executable,
        "-m",
        module,
        str(channel.fileno()),
        str(os.getpid()),
        json.dumps(arguments),
    ]
    return spawner.submit(
        subprocess.Popen,
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=[channel.fileno()],
        start_new_session=True,
        env=rank_environment(environment, host=arguments["host"]),
    ).result()


class RankForkServer:
    """The owner's side of a fork server process. Several threads may use it."""

    def __init__(self, spawner: ThreadPoolExecutor, arguments: Mapping[str, str]) -> None:
        """`spawner` must have one thread that lives as long as the ranks may: the kernel's death
        signal follows it. `arguments`: of `rank.serve_rank`."""
        self._spawner, self._arguments = spawner, dict(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lines = Lines()
        self._has_answered = False
        self._pending: deque[ForkedChild] = deque()
        """asked for, in the order in which the server answers"""
        self._living: dict[int, ForkedChild] = {}
        """by process number"""
        self._lock = threading.RLock()

    def spawn(
        self, channel: socket.socket, log: int, environment: Mapping[str, str]
    ) -> ForkedChild:
        """Asks for a rank on this channel, with its output to the descriptor `log`."""
        with self._lock:
            self.listen()
            server = self._channel or self._start()
            child = ForkedChild(self)
            request = to_line({"environment": dict(environment), "arguments": self._arguments})
            self._pending.append(child)
            with contextlib.suppress(OSError):  # the server is lost: `listen` will tell the child
                socket.send_fds(server, [request], [channel.fileno(), log])
            return child

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _start_module(
                self._spawner,
                "fork_server",
                theirs,
                self._arguments,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                environment={"CUDA_VISIBLE_DEVICES": ""},
            )
        ours.setblocking(False)
        self._channel, self._lines, self._has_answered = ours, Lines(), False
        return ours

    def listen(self) -> None:
        """Takes note of children that have started or ended."""
        with self._lock:
            while self._channel is not None:
                try:
                    chunk = self._channel.recv(1 << 16)
                except BlockingIOError:
                    if self._hangs():
                        self._lose(hung=True)
                    return
                except OSError:
                    chunk = b""
                if not chunk:
                    self._lose()
                    return
                self._has_answered = True
                for message in self._lines.feed(chunk):
                    self._note(message)

    def _note(self, message: Mapping[str, Any]) -> None:
        pid = message["pid"]
        if "code" in message:
            child = self._living.pop(pid, None)
            if child is not None:
                child.end(message["code"])
        else:
            child = self._pending.popleft()
            self._living[pid] = child
            child.started(pid)

    def _hangs(self) -> bool:
        """Whether the server should have answered long ago. It is then aborted, which makes it
        print where it hangs."""
        limit_s = ANSWER_S if self._has_answered else FIRST_ANSWER_S
        if (
            not self._pending
            or self._process is None
            or time.monotonic() - self._pending[0].asked_s < limit_s
        ):
            return False
        LOG.warning(
            "the ranks' fork server did not answer for %g s; the server is replaced, and its ranks are lost",
            limit_s,
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGABRT)
        return True

    def _lose(self, *, hung: bool = False) -> None:
        """The server is gone or must go, and the kernel kills its children."""
        errors, was_killed = self._reap_server()
        for child in (*self._pending, *self._living.values()):
            child.end(-signal.SIGKILL if child.pid or was_killed or hung else 1, errors)
        self._pending.clear()
        self._living.clear()

    def _reap_server(self) -> tuple[tuple[str, ...], bool]:
        """Its last lines of output, and whether somebody else killed it."""
        lines: tuple[str, ...] = ()
        was_killed = False
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            # without its channel it ends, if it has not yet
            with contextlib.suppress(subprocess.TimeoutExpired):
                was_killed = self._process.wait(timeout=0.5) < 0
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = self._process.communicate(timeout=10.0)
                lines = tuple(errors.decode(errors="replace").splitlines()[-20:])
            self._process = None
        return lines, was_killed

    def close(self) -> None:
        """Ends the server and its children; waits until the children are gone."""
        with self._lock:
            pids = [pid for pid in self._living if pid]
            self._lose()
        end = time.monotonic() + 10.0
        while any(is_alive(pid) for pid in pids) and time.monotonic() < end:
            time.sleep(0.005)


class ForkedChild:
    """A child of the fork server."""

    def __init__(self, server: RankForkServer) -> None:
        self._server = server
        self.asked_s = time.monotonic()
        self.pid = 0
        """process number; 0 until it is known"""
        self._code: int | None = None
        self._kept_signal: signal.Signals | None = None
        self.start_errors: tuple[str, ...] = ()
        """output of the server, when it was lost"""

    def code(self) -> int | None:
        """Exit status, negative for a signal; None while it lives or has not started yet."""
        if self._code is None:
            self._server.listen()
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to the process and to what it forked, or keeps it until the process
        number is known."""
        if self.code() is not None:
            return
        if self.pid:
            self._send(number)
        else:
            self._kept_signal = number

    def _send(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it leads no group yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def started(self, pid: int) -> None:
        """The server reports its process number."""
        self.pid = pid
        if self._kept_signal is not None:
            self._send(self._kept_signal)

    def end(self, code: int, errors: tuple[str, ...] = ()) -> None:
        """The server reports its end, or was lost itself: then `errors` are its last lines."""
        self._code, self.start_errors = code, errors


class OwnChild:
    """A rank started as a process of its own."""

    start_errors: tuple[str, ...] = ()

    def __init__(
        self,
        spawner: ThreadPoolExecutor,
        channel: socket.socket,
        log: int,
        environment: Mapping[str, str],
        arguments: Mapping[str, str],
    ) -> None:
        """Starts it; see `RankForkServer`."""
        self._process = _start_module(
            spawner, "rank", channel, arguments, stdout=log, stderr=log, environment=environment
        )
        self.pid = self._process.pid

    def code(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to the process and to what it forked."""
        if self.code() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
