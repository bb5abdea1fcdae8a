"""Rank processes of this machine: start, talk, listen, end, and what their logs say last.

A rank is started from one thread that lives as long as its owner, because the kernel's death-with-parent signal follows the *thread*
that forked. Its output goes to an unnamed file, so nothing is left behind however the owner ends; its input is empty; it leads a
process group of its own, so that what it forks (compilers) ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autotune_workers.machine import oom_kills
from autotune_workers.wire import Lines, Message, to_line

TRIAL = "autotune_workers.trial:run_trial"
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 8192
_PRIVATE = ("AUTOTUNE_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_")


def rank_environment(extra: Mapping[str, str], *, host: str) -> dict[str, str]:
    """The environment of a rank: the owner's, without the service's settings and other launchers' variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_PRIVATE)}
    here = {str(Path(__file__).resolve().parents[1]), str(Path(sys.modules["autotune"].__path__[0]).resolve().parent)}
    path = os.pathsep.join([*sorted(here), *filter(None, [kept.get("PYTHONPATH", "")])])
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if host in ("127.0.0.1", "::1") else {}
    return {
        **kept,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # the trial itself says how many threads it has
        **loopback,
        **extra,
    }


class RankProcess:
    """One rank process and its channel. One thread listens; `send` and the signals may come from another."""

    def __init__(
        self,
        *,
        name: str,
        spawner: ThreadPoolExecutor,
        device: str = "cpu",
        host: str = "127.0.0.1",
        trial: str = TRIAL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the process; `spawner` must have one thread that lives as long as the process may."""
        self.name = name
        self.ready = False
        self.host = host
        self.pid = 0
        self._oom_kills = oom_kills()
        self._lines = Lines()
        self._log = tempfile.TemporaryFile(prefix="autotune-rank-")  # noqa: SIM115 - closed by `close`
        ours, theirs = socket.socketpair()
        self._channel = ours
        command = [sys.executable, "-m", "autotune_workers.rank", "--fd", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--device", device, "--host", host, "--trial", trial]
        try:
            self._process: subprocess.Popen[bytes] = spawner.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=rank_environment(environment or {}, host=host),
            ).result()
        except BaseException:
            ours.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        ours.setblocking(False)
        self._mouth = ours.dup()
        self._mouth.settimeout(1.0)

    def fileno(self) -> int:
        """For selectors: readable when there are messages or the process is gone; -1 once the channel has ended."""
        return self._channel.fileno()

    def send(self, message: Message) -> None:
        """Sends a message; a rank that is gone does not hear it, and one that no longer reads is the deadlines' business."""
        with contextlib.suppress(OSError):
            self._mouth.sendall(to_line(message))

    def receive(self) -> list[Message]:
        """Messages that have arrived; the last one is `gone` once the process has ended."""
        messages: list[Message] = []
        while self._channel.fileno() >= 0:
            try:
                chunk = self._channel.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            if not chunk:
                self._channel.close()
                self._signal(signal.SIGKILL)  # without its channel a rank is of no use, should it still be there
                break
            messages += self._lines.feed(chunk)
        for message in messages:
            if message["say"] == "ready":
                self.ready = True
        code = self._process.poll()
        if code is None and self._channel.fileno() < 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=10.0)
        if code is not None:
            if self._channel.fileno() >= 0:
                messages += self._last_words()
            kernel_oom = oom_kills() > self._oom_kills
            messages.append({"say": "gone", "code": code, "kernel_oom": kernel_oom, "why": ""})
        return messages

    def _last_words(self) -> list[Message]:
        """What the process said between the last look and its end."""
        messages: list[Message] = []
        with contextlib.suppress(OSError):
            while chunk := self._channel.recv(1 << 16):
                messages += self._lines.feed(chunk)
        self._channel.close()
        return messages

    def begin(self) -> None:
        """A trial begins: kernel kills before it do not concern it."""
        self._oom_kills = oom_kills()

    def log_tail(self) -> tuple[str, ...]:
        """The last lines that it printed since its trial began."""
        try:
            size = os.fstat(self._log.fileno()).st_size
            data = os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        except (OSError, ValueError):
            return ()
        return tuple(data.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def terminate(self) -> None:
        """SIGTERM to the process and what it forked."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and what it forked."""
        self._signal(signal.SIGKILL)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kills it, waits until it is gone and frees everything; False when it would not go."""
        self.kill()
        gone = True
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            gone = False
        self._channel.close()
        self._mouth.close()
        self._log.close()
        return gone

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
