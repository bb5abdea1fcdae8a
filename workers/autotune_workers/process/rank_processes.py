"""Starts rank processes on this machine, exchanges messages with them, ends them, and reads the
last lines of their logs.

A rank's output goes to an unnamed file, so nothing remains however its owner ends. Its input is
empty. It has its own process group, so that its forks (compilers) end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from autotune.spec.texts.as_text import format_duration
from autotune_workers.gang.wire import Message
from autotune_workers.process.children import ForkedChild, OwnChild, RankForkServer
from autotune_workers.process.machine import oom_kills
from autotune_workers.process.message_channel import MessageChannel

TRIAL = "autotune_workers.training.run_trial:run_trial"
LOG_TAIL_LINES = 30
LOG_TAIL_BYTES = 32768
EXIT_S = 5.0
"""seconds that a process has to end by itself after its channel is closed, because its exit status
shows the cause"""
CRASH = "Fatal Python error"
"""first words of Python's dump of all threads; the reason is printed just before it"""


class RankStarter:
    """Starts the ranks of one owner: from a fork server for CPU, as separate processes for GPU."""

    def __init__(
        self, *, device: str, host: str = "127.0.0.1", trial: str = TRIAL, collectives: str = ""
    ) -> None:
        """`device`: cpu or cuda. `host`: address at which ranks reach one another. `trial`:
        `module:function` of the training loop. `collectives`: `module:name` of a torch.distributed
        backend that the module registers; empty for the device's default."""
        self._device, self.host = device, host
        self._arguments = {
            "device": device,
            "host": host,
            "trial": trial,
            "collectives": collectives,
        }
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="autotune-spawner")
        self._fork_server = RankForkServer(self._spawner, self._arguments)

    def start(
        self, channel: socket.socket, log: int, environment: Mapping[str, str]
    ) -> ForkedChild | OwnChild:
        """Starts a rank process with this channel, and the descriptor `log` for its output."""
        if self._device == "cpu":
            return self._fork_server.spawn(channel, log, environment)
        return OwnChild(self._spawner, channel, log, environment, self._arguments)

    def close(self) -> None:
        """Ends the fork server. Close ranks on GPUs before."""
        self._fork_server.close()
        self._spawner.shutdown()


class RankProcess:
    """One rank process and its channel. One thread receives; `send` may be called by another."""

    def __init__(
        self, starter: RankStarter, *, name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Requests the process. `ready` becomes true with its message of that name."""
        self.name = name
        self.ready = False
        self.address = starter.host
        self.node, self.gpus = "", ()
        self._oom_kills = oom_kills()
        self._log = tempfile.TemporaryFile(prefix="autotune-rank-")  # noqa: SIM115 - closed by `close`
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel(ours, send_timeout_s=1.0)
        try:
            with theirs:
                self._child = starter.start(theirs, self._log.fileno(), environment or {})
        except BaseException:
            self._channel.close()
            self._log.close()
            raise

    @property
    def pid(self) -> int:
        """Process number; 0 until it is known."""
        return self._child.pid

    def fileno(self) -> int:
        """For selectors: readable when there are messages or the process is gone; -1 once the
        channel has ended."""
        return self._channel.fileno()

    def send(self, message: Message) -> None:
        """Sends a message. If the rank has ended, the message is lost; if it no longer reads, a
        deadline of the attempt expires."""
        self._channel.send(message)

    def receive(self) -> list[Message]:
        """Messages that have arrived; the last one is `gone` once the process has ended."""
        code = self._child.code()  # checked before the last read, so that no message is lost
        was_open = self._channel.is_open
        messages = self._channel.receive()
        why = ""
        if was_open and not self._channel.is_open and (code := self._wait(EXIT_S)) is None:
            why = f"the rank closed its channel, but did not end within {format_duration(EXIT_S)}, and was killed"
            self.kill()  # a rank without a channel cannot be used
            self._wait(10.0)
        for message in messages:
            if message["event"] == "ready":
                self.ready, self.node, self.gpus = True, message["hostname"], tuple(message["gpus"])
        if code is not None or why:
            self._channel.stop_receiving()
            self.ready = False
            messages.append(
                {
                    "event": "gone",
                    "code": code,
                    "kernel_oom": oom_kills() > self._oom_kills,
                    "why": why,
                }
            )
        return messages

    def begin(self) -> None:
        """Call when a trial begins: earlier OOM kills are not attributed to it."""
        self._oom_kills = oom_kills()

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of output since its trial began; after a crash, the lines around the
        beginning of the crash report."""
        if self._child.start_errors:
            return self._child.start_errors
        try:
            size = os.fstat(self._log.fileno()).st_size
            data = os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        except (OSError, ValueError):
            return ()
        lines = data.decode(errors="replace").splitlines()
        crash = next((i for i, line in enumerate(lines) if line.startswith(CRASH)), None)
        start = max(
            0, len(lines) - LOG_TAIL_LINES if crash is None else crash - LOG_TAIL_LINES // 3
        )
        return tuple(lines[start : start + LOG_TAIL_LINES])

    def terminate(self) -> None:
        """Sends SIGTERM to the process and its forks."""
        self._child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the process and its forks."""
        self._child.signal(signal.SIGKILL)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kills the process, waits until it has ended and frees all resources. Returns False if it
        did not end within `timeout_s`."""
        self.kill()
        gone = not self.pid or self._wait(timeout_s) is not None
        self._channel.close()
        self._log.close()
        return gone

    def _wait(self, timeout_s: float) -> int | None:
        end = time.monotonic() + timeout_s
        while (code := self._child.code()) is None and time.monotonic() < end:
            time.sleep(0.002)
        return code
