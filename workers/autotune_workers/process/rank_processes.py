"""Rank processes of this machine: how they are started, sent messages, ended, and the last lines of
their logs.

A rank's output goes to an unnamed file, so nothing is left behind however its owner ends; its input
is empty; it leads a process group of its own, so that what it forks (compilers) ends with it.
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
"""time that a process gets to end by itself once its channel is closed: how it ends says why"""
CRASH = "Fatal Python error"
"""first words of the dump of all threads; the reason stands right before it"""


class RankStarter:
    """Starts the ranks of one owner: on CPU from a fork server, on GPU as processes of their
    own."""

    def __init__(
        self, *, device: str, host: str = "127.0.0.1", trial: str = TRIAL, collectives: str = ""
    ) -> None:
        """`device`: cpu or cuda; `host`: the address on which ranks reach one another; `trial`:
        `module:function`; `collectives`: `module:name` of a backend of torch.distributed that the
        module registers. Empty: the one of the device."""
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
        """A new rank process on this channel, with its output to the descriptor `log`."""
        if self._device == "cpu":
            return self._fork_server.spawn(channel, log, environment)
        return OwnChild(self._spawner, channel, log, environment, self._arguments)

    def close(self) -> None:
        """Ends the fork server; ranks that were started on their own must be closed before."""
        self._fork_server.close()
        self._spawner.shutdown()


class RankProcess:
    """One rank process and its channel. One thread listens; `send` may come from another."""

    def __init__(
        self, starter: RankStarter, *, name: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Asks for the process; `ready` once its message of that name has come."""
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
        """Sends a message; a rank that is gone does not get it, and one that no longer reads is
        found by the deadlines."""
        self._channel.send(message)

    def receive(self) -> list[Message]:
        """Messages that have arrived; the last one is `gone` once the process has ended."""
        code = self._child.code()  # before the last read: no message before the end is lost
        was_open = self._channel.is_open
        messages = self._channel.receive()
        why = ""
        if was_open and not self._channel.is_open and (code := self._wait(EXIT_S)) is None:
            why = f"the rank closed its channel, but did not end within {format_duration(EXIT_S)}, and was killed"
            self.kill()  # without its channel a rank is of no use
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
        """A trial begins: kernel kills before it do not concern it."""
        self._oom_kills = oom_kills()

    def log_tail(self) -> tuple[str, ...]:
        """The last lines that it printed since its trial began; after a crash, those around the
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
        """SIGTERM to the process and what it forked."""
        self._child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and what it forked."""
        self._child.signal(signal.SIGKILL)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kills it, waits until it is gone and frees everything; False when it would not go."""
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
