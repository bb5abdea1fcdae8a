"""Child processes that become ranks: forked from a nursery, or started on their own (where a GPU forbids forking).

Both are asked for without waiting: a child of the nursery has no process number until it is born, and an order to kill it before that is
kept. A nursery is started when the first child is asked for, and again when it was lost; its children are lost with it (SIGKILL).
"""

from __future__ import annotations

import contextlib
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
from typing import Any, Protocol

from autotune_workers.gang.wire import Lines, to_line

_PRIVATE = ("AUTOTUNE_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_")
_LOOPBACK = re.compile(r"127\.|::1$")


class Child(Protocol):
    """A process that becomes a rank."""

    @property
    def pid(self) -> int:
        """Process number; 0 before it is born."""
        ...

    def code(self) -> int | None:
        """Exit status, negative for a signal; None while it lives or is not yet born."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal to it and what it forked."""
        ...


def inherited_environment() -> dict[str, str]:
    """Our environment without the service's settings, secrets among them, and other launchers' variables."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_PRIVATE)}


def rank_environment(extra: Mapping[str, str], *, host: str) -> dict[str, str]:
    """The environment of a rank: what is inherited, and where our packages are."""
    kept = inherited_environment()
    roots = {str(Path(sys.modules[name].__path__[0]).resolve().parent) for name in ("autotune", "autotune_workers")}
    path = os.pathsep.join([*sorted(roots), *filter(None, [kept.get("PYTHONPATH", "")])])
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if _LOOPBACK.match(host) else {}
    return {
        **kept,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # the trial itself says how many threads it has
        **loopback,
        **extra,
    }


class RankForkServer:
    """Our side of a nursery process. Several threads may use it."""

    def __init__(self, spawner: ThreadPoolExecutor, *, host: str, trial: str) -> None:
        """`spawner` must have one thread that lives as long as the ranks may: the kernel's death signal follows it."""
        self._spawner, self._host, self._trial = spawner, host, trial
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lines = Lines()
        self._unborn: deque[ForkedChild] = deque()
        self._living: dict[int, ForkedChild] = {}
        self._turn = threading.RLock()

    def spawn(self, channel: socket.socket, log: int, environment: Mapping[str, str]) -> ForkedChild:
        """Asks for a rank on this channel, with its output to the descriptor `log`."""
        with self._turn:
            return self._spawn(channel, log, environment)

    def _spawn(self, channel: socket.socket, log: int, environment: Mapping[str, str]) -> ForkedChild:
        self._listen()
        if self._channel is None:
            self._start()
        assert self._channel is not None
        child = ForkedChild(self)
        arguments = {"device": "cpu", "host": self._host, "trial": self._trial}
        request = to_line({"environment": dict(environment), "arguments": arguments})
        self._unborn.append(child)
        with contextlib.suppress(OSError):  # the nursery is lost: `listen` says so to the child
            socket.send_fds(self._channel, [request], [channel.fileno(), log])
        return child

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "autotune_workers.process.fork_server", "--fd", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--trial", self._trial]
        with theirs:
            self._process = self._spawner.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=rank_environment({"CUDA_VISIBLE_DEVICES": ""}, host=self._host),
            ).result()
        ours.setblocking(False)
        self._channel, self._lines = ours, Lines()

    def listen(self) -> None:
        """Takes note of births and deaths."""
        with self._turn:
            self._listen()

    def _listen(self) -> None:
        while self._channel is not None:
            try:
                chunk = self._channel.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._lose()
                return
            for message in self._lines.feed(chunk):
                self._note(message)

    def _note(self, message: Mapping[str, Any]) -> None:
        pid = message["pid"]
        if "code" in message:
            child = self._living.pop(pid, None)
            if child is not None:
                child.end(message["code"])
        else:
            child = self._unborn.popleft()
            self._living[pid] = child
            child.born(pid)

    def _lose(self) -> None:
        """The nursery is gone, and by the kernel's hand all its children."""
        words, was_killed = self._bury()
        for child in (*self._unborn, *self._living.values()):
            child.end(-signal.SIGKILL if child.pid or was_killed else 1, words)
        self._unborn.clear()
        self._living.clear()

    def _bury(self) -> tuple[tuple[str, ...], bool]:
        """Its last words, and whether somebody else killed it."""
        words: tuple[str, ...] = ()
        was_killed = False
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # without its channel it ends, if it has not yet
                was_killed = self._process.wait(timeout=0.5) < 0
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = self._process.communicate(timeout=10.0)
                words = tuple(errors.decode(errors="replace").splitlines()[-20:])
            self._process = None
        return words, was_killed

    def close(self) -> None:
        """Ends the nursery and its children; waits until the children are gone."""
        from autotune_workers.process.machine import is_alive

        with self._turn:
            pids = [pid for pid in self._living if pid]
            self._lose()
        end = time.monotonic() + 10.0
        while any(is_alive(pid) for pid in pids) and time.monotonic() < end:
            time.sleep(0.005)


class ForkedChild:
    """A child of the nursery."""

    def __init__(self, nursery: RankForkServer) -> None:
        self._nursery = nursery
        self._pid = 0
        self._code: int | None = None
        self._wanted: signal.Signals | None = None
        self.last_words: tuple[str, ...] = ()
        """what the nursery said when it could not give birth"""

    @property
    def pid(self) -> int:
        """Process number; 0 before it is born."""
        return self._pid

    def code(self) -> int | None:
        """Exit status, once the nursery has told it."""
        if self._code is None:
            self._nursery.listen()
        return self._code

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal, or keeps it until the birth."""
        if self.code() is not None:
            return
        if self._pid:
            self._send(number)
        else:
            self._wanted = number

    def _send(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:  # it leads no group yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def born(self, pid: int) -> None:
        """The nursery says that it lives."""
        self._pid = pid
        if self._wanted is not None:
            self._send(self._wanted)

    def end(self, code: int, words: tuple[str, ...] = ()) -> None:
        """The nursery says that it is gone."""
        self._code, self.last_words = code, words


class OwnChild:
    """A rank started as a process of its own."""

    last_words: tuple[str, ...] = ()

    def __init__(
        self,
        spawner: ThreadPoolExecutor,
        channel: socket.socket,
        log: int,
        environment: Mapping[str, str],
        *,
        device: str,
        host: str,
        trial: str,
    ) -> None:
        """Starts it; see `RankForkServer` for `spawner`."""
        command = [sys.executable, "-m", "autotune_workers.process.rank", "--fd", str(channel.fileno())]
        command += ["--parent", str(os.getpid()), "--device", device, "--host", host, "--trial", trial]
        self._process: subprocess.Popen[bytes] = spawner.submit(
            subprocess.Popen,
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[channel.fileno()],
            start_new_session=True,
            env=rank_environment(environment, host=host),
        ).result()

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    def code(self) -> int | None:
        """Exit status; None while it lives."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal."""
        if self.code() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
