"""Child processes that become ranks: forked from a fork server (`fork_server`), or started as
separate processes for GPUs, because CUDA forbids forking.

Starting does not block. A forked child has no process number until the server reports it; a signal
sent before that is stored. The server is started with the first child, and again if it is lost or
hangs. The kernel kills its children when it ends.
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
"""prefixes of variables that are not passed on: autotune's settings and secrets, and those of
launchers"""
_LAUNCHERS = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT",
})  # fmt: skip
"""variables that a launcher sets for its ranks, or a Kubernetes training operator for torchrun
(`PET_`). Those of the launcher of this process would be wrong for a trial"""
OF_A_JOB = ("SLURM_", "PMI_", "PMI2_", "PMIX_", "OMPI_")
"""prefixes of variables by which a scheduler or MPI gives a process its place in a job. Trainers
use them: Lightning rejects ranks that differ from the job's tasks, and lets Slurm requeue the
job"""
ANSWER_S = 60.0
"""longest wait for an answer of the fork server, which usually takes milliseconds; its first one
takes the time to import torch (`FIRST_ANSWER_S`)"""
FIRST_ANSWER_S = 300.0
_LOOPBACK = re.compile(r"127\.|::1$")


def inherited_environment(
    *, with_job: bool = False, of: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of this process without autotune's secrets (settings, database passwords,
    Ray's token) and launchers' variables. `with_job`: keep the variables of the job of this
    process, which `srun` needs to start a step of it. `of`: an environment to filter instead of
    this process's."""
    private = _PRIVATE if with_job else (*_PRIVATE, *OF_A_JOB)
    environment = os.environ if of is None else of
    return {
        name: value
        for name, value in environment.items()
        if not (name.startswith(private) or name in _LAUNCHERS)
    }


def rank_environment(extra: Mapping[str, str], *, host: str) -> dict[str, str]:
    """The environment of a rank: inherited variables, the path to the installed packages, network
    interfaces and `extra`."""
    inherited = inherited_environment()
    roots = {
        str(Path(sys.modules[name].__path__[0]).resolve().parent)
        for name in ("autotune", "autotune_workers")
    }
    path = os.pathsep.join([*sorted(roots), *filter(None, [inherited.get("PYTHONPATH", "")])])
    if _LOOPBACK.match(host):
        interface = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    elif "GLOO_SOCKET_IFNAME" not in inherited and (name := interface_of(host)):
        # if the host's name does not resolve, gloo would use loopback
        interface = {"GLOO_SOCKET_IFNAME": name}
    else:
        interface = {}
    return {
        **inherited,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # a trial sets its number of threads itself
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
    """Starts a module of this package as a process, with channel, parent and arguments on its
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
    """The owner's side of a fork server process. Thread-safe."""

    def __init__(self, spawner: ThreadPoolExecutor, arguments: Mapping[str, str]) -> None:
        """`spawner`: must have one thread that lives as long as the ranks, because the kernel ends
        them with the thread that started them. `arguments`: of `rank.serve_rank`."""
        self._spawner, self._arguments = spawner, dict(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lines = Lines()
        self._has_answered = False
        self._pending: deque[ForkedChild] = deque()
        """requested children, in the order in which the server answers"""
        self._living: dict[int, ForkedChild] = {}
        """running children by process number"""
        self._lock = threading.RLock()

    def spawn(
        self, channel: socket.socket, log: int, environment: Mapping[str, str]
    ) -> ForkedChild:
        """Requests a rank with this channel, and the descriptor `log` for its output."""
        with self._lock:
            self.listen()
            server = self._channel or self._start()
            child = ForkedChild(self)
            request = to_line({"environment": dict(environment), "arguments": self._arguments})
            self._pending.append(child)
            with contextlib.suppress(OSError):  # the server is lost: `listen` ends the child
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
        """Reads the server's reports of children that have started or ended."""
        with self._lock:
            while self._channel is not None:
                try:
                    chunk = self._channel.recv(1 << 16)
                except BlockingIOError:
                    if self._abort_if_overdue():
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

    def _abort_if_overdue(self) -> bool:
        """Whether the server's answer is overdue. If so, it is aborted, which prints where it
        hangs."""
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
        """Ends the server and marks all its children as ended, as the kernel kills them."""
        errors, was_killed = self._reap_server()
        for child in (*self._pending, *self._living.values()):
            child.end(-signal.SIGKILL if child.pid or was_killed or hung else 1, errors)
        self._pending.clear()
        self._living.clear()

    def _reap_server(self) -> tuple[tuple[str, ...], bool]:
        """Ends the server. Returns (last lines of its output, whether it was killed by a signal
        from elsewhere)."""
        lines: tuple[str, ...] = ()
        was_killed = False
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            # it ends when its channel is closed
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
        """Ends the server and its children, and waits until the children are gone."""
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
        """process number; 0 until the server reports it"""
        self._code: int | None = None
        self._stored_signal: signal.Signals | None = None
        self.start_errors: tuple[str, ...] = ()
        """last lines of output of the server if it was lost"""

    def code(self) -> int | None:
        """Exit status, negative for a signal; None while it lives or has not started yet."""
        if self._code is None:
            self._server.listen()
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to the process and its forks, or stores it until the process number is
        known."""
        if self.code() is not None:
            return
        if self.pid:
            self._send(number)
        else:
            self._stored_signal = number

    def _send(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has no process group of its own yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def started(self, pid: int) -> None:
        """Notes the process number reported by the server, and sends the stored signal."""
        self.pid = pid
        if self._stored_signal is not None:
            self._send(self._stored_signal)

    def end(self, code: int, errors: tuple[str, ...] = ()) -> None:
        """Notes the exit status. `errors`: the server's last lines if it was lost."""
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
        """Starts the process. For arguments see `RankForkServer`."""
        self._process = _start_module(
            spawner, "rank", channel, arguments, stdout=log, stderr=log, environment=environment
        )
        self.pid = self._process.pid

    def code(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to the process and its forks."""
        if self.code() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
