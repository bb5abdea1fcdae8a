"""Forwards a program's log to the keeper's owner: lines with their time of arrival, bounded in
memory and rate.

    burst    BURST_BYTES of text are forwarded at once        rate    RATE_BYTES_PER_S on average
    beyond   lines wait, also while the owner has more than BACKLOG_BYTES to read. The last `LAST_BYTES` of waiting lines are kept. Of
             the lines before them, those that may be step lines are forwarded, up to STEP_BYTES that the owner has not read; the others are left
             out and counted

A busy owner never blocks the program. Looking for step lines may, if the program prints tens of MB
per second, and once while the trainer's reader is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

BURST_BYTES = 4 << 20
RATE_BYTES_PER_S = 256 << 10
LAST_BYTES = 16 << 10
BACKLOG_BYTES = 2 << 20
CHUNK_BYTES = 1 << 20
"""largest size of one read of the log"""
LINE_BYTES = 1 << 16
"""longer lines are cut to this size"""
STEP_BYTES = 8 << 20
"""largest total size of step lines that wait for a busy owner"""
LIFE_S = 1.0
"""longest time without a message to the owner while the program prints, seconds"""
RETRY_S = 0.2
"""interval of checks whether waiting lines may be forwarded while the program prints nothing,
seconds"""
_LINE_END = re.compile(rb"[\r\n]+")


def widen(pipe: int) -> None:
    """Sets the capacity of a pipe to `CHUNK_BYTES` if the system allows it, so that a burst of
    lines does not block the program."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)


class StepTest(NamedTuple):
    """Test for lines that may be step lines."""

    may_tell: Callable[[str], bool]
    mark: re.Pattern[bytes] | None = None
    """matches every line for which `may_tell` can be true; None if there is no such pattern"""

    @classmethod
    def of(cls, may_tell: Callable[[str], bool], marks: tuple[str, ...]) -> StepTest:
        """`marks`: every line that may be a step line contains one of these texts; empty if
        unknown."""
        pattern = b"|".join(re.escape(mark.encode()) for mark in marks)
        return cls(may_tell, re.compile(pattern) if marks else None)


def _lines_with(text: bytes, mark: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yields the lines that contain the mark. The others are not split off, because a program may
    print millions of them."""
    position = 0
    while found := mark.search(text, position):
        begin = max(
            position,
            text.rfind(b"\n", position, found.start()) + 1,
            text.rfind(b"\r", position, found.start()) + 1,
        )
        ended = _LINE_END.search(text, found.end())
        position = ended.start() if ended else len(text)
        yield text[begin:position]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Output that was left out: one gap in the log, or the sum of several."""

    lines: int = 0
    bytes: int = 0
    step_lines: int = 0
    """possible step lines among them, dropped because too much waited for the owner"""
    blind: str = ""
    """why step lines could not be recognized; empty if they could"""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> LeftOut:
        """The output left out before the lines of this message."""
        return cls(**message.get("left_out", {}))

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(
            lines=self.lines + other.lines,
            bytes=self.bytes + other.bytes,
            step_lines=self.step_lines + other.step_lines,
            blind=self.blind or other.blind,
        )

    def __bool__(self) -> bool:
        return self.lines > 0

    def plain(self) -> dict[str, Any]:
        """As a JSON value for a message."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The amount, and the number of possible step lines in it, as words for a message."""
        size = (
            f"{self.bytes / 2**20:.1f} MiB"
            if self.bytes >= 2**20
            else f"{-(-self.bytes // 2**10)} KiB"
        )
        lines_text = f"{self.lines} {'line' if self.lines == 1 else 'lines'} ({size})"
        if self.blind:
            return f"{lines_text}, perhaps with step lines among them ({self.blind})"
        return f"{lines_text}, with {self.step_lines or 'no'} step {'line' if self.step_lines == 1 else 'lines'} among them"


@final
class Outbox:
    """Queue of messages to the owner. Only `drain` waits for the owner. Thread-safe."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._unsent = bytearray()
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether messages are waiting to be sent."""
        return bool(self._unsent)

    @property
    def is_behind(self) -> bool:
        """Whether more than `BACKLOG_BYTES` are waiting; then only essential messages should be
        sent."""
        return len(self._unsent) > BACKLOG_BYTES

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends the message now, or queues it until the owner reads."""
        with self._lock:
            self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
            self._flush()

    def flush(self) -> None:
        """Sends queued messages as far as the owner reads, without waiting."""
        with self._lock:
            self._flush()

    def drain(self, timeout_s: float) -> None:
        """Waits until all messages are sent or the owner is gone, at most `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while self._unsent and (left_s := end_s - time.monotonic()) > 0:
            select.select([], [self._channel], [], left_s)
            self.flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._channel.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:  # the owner is gone
            self._unsent.clear()


@final
class LogReader(threading.Thread):
    """Reads a log to its end and sends its lines.

    Lines that may not be forwarded yet are held in order, up to `LAST_BYTES`; beyond that the oldest
    ones are left out, except step lines. So the last `LAST_BYTES` of a log always arrive without a
    gap: neither the rate limit nor a busy owner cuts a traceback.
    """

    def __init__(self, log: int, outbox: Outbox, load_test: Callable[[], StepTest]) -> None:
        """`log`: reading end of the pipe of the program's output; closed at its end. `load_test`:
        loads the test for step lines; called before lines have to be left out. If it raises, no
        line is recognized as a step line."""
        super().__init__(name="autotune-log", daemon=True)
        self._log, self._outbox = log, outbox
        self._load_test = load_test
        self._loader: threading.Thread | None = None
        self._test = StepTest(lambda _: False, re.compile(b"(?!)"))
        self._test_error = ""
        """why step lines cannot be recognized"""
        self._steps: deque[tuple[float, bytes]] = deque()
        """step lines to forward regardless of the rate; older than the held lines"""
        self._step_bytes = 0
        self._last_message_s = time.monotonic()
        """time of the last message to the owner"""
        self._unfinished_line = b""
        """beginning of a line that has not ended"""
        self._held: deque[tuple[float, bytes]] = deque()
        """lines not forwarded yet, each with its time of arrival"""
        self._held_bytes = 0
        self._left_out = LeftOut()
        """output dropped between the forwarded lines and the held ones"""
        self._budget, self._filled_s = float(BURST_BYTES), time.monotonic()

    def run(self) -> None:
        """Reads until no process has the pipe open for writing."""
        with contextlib.suppress(OSError):
            while True:
                if (self._held or self._steps) and not select.select([self._log], [], [], RETRY_S)[
                    0
                ]:
                    self._pass_on(time.monotonic())
                elif chunk := os.read(self._log, CHUNK_BYTES):
                    self._add_chunk(chunk, time.monotonic())
                else:
                    break
        self._finish(time.monotonic())
        os.close(self._log)

    def _add_chunk(self, chunk: bytes, now_s: float) -> None:
        may_pass_bytes = 0 if self._outbox.is_behind else int(self._budget)
        start = chunk.find(b"\n", may_pass_bytes) + 1
        end = chunk.rfind(b"\n", start, max(start, len(chunk) - LAST_BYTES)) + 1
        if 0 < start < end:  # neither forwarded nor held: not split into lines
            self._split(chunk[:start], now_s)
            self._pass_on(now_s)
            self._leave_out(len(self._held))
            self._leave_out_flood(chunk[start:end], now_s)
            chunk = chunk[end:]
        self._split(chunk, now_s)
        self._pass_on(now_s)
        if self._budget < BURST_BYTES / 2:
            self._start_loading_test()
        if self._held_bytes > LAST_BYTES and len(self._held) > 1:
            kept_bytes = kept = 0
            for _, line in reversed(self._held):
                kept_bytes += len(line)
                if kept and kept_bytes > LAST_BYTES:
                    break
                kept += 1
            self._leave_out(len(self._held) - kept)
            self._pass_on(now_s)
        if now_s - self._last_message_s >= LIFE_S:  # a line without an end, or one that waits
            self._send_lines([], now_s)

    def _split(self, chunk: bytes, now_s: float) -> None:
        *lines, rest = _LINE_END.split(self._unfinished_line + chunk)
        self._unfinished_line = rest[:LINE_BYTES]
        self._hold(lines, now_s)

    def _start_loading_test(self) -> None:
        """Loads the test in another thread, while the log is read on."""
        if self._loader is None:
            self._loader = threading.Thread(
                target=self._load_step_test, name="autotune-step-lines", daemon=True
            )
            self._loader.start()

    def _load_step_test(self) -> None:
        try:
            self._test = self._load_test()
        except Exception as error:  # such as a trainer that is not installed on this node
            self._test_error = f"{type(error).__name__}: {error}"[:300]

    def _loaded_test(self) -> StepTest:
        self._start_loading_test()
        assert self._loader is not None
        self._loader.join()
        return self._test

    def _leave_out(self, count: int) -> None:
        """Drops the `count` oldest held lines, except possible step lines."""
        may_tell, mark = self._loaded_test()
        dropped = [self._take_oldest() for _ in range(count)]
        step_lines = [
            line
            for line in dropped
            if (mark is None or mark.search(line[1])) and may_tell(line[1].decode(errors="replace"))
        ]
        self._keep_steps(step_lines, len(dropped), sum(len(line) for _, line in dropped))

    def _leave_out_flood(self, text: bytes, now_s: float) -> None:
        """Drops text of whole lines that were never held, except possible step lines."""
        may_tell, mark = self._loaded_test()
        lines = (
            line[:LINE_BYTES]
            for line in (_LINE_END.split(text) if mark is None else _lines_with(text, mark))
        )
        step_lines = [(now_s, line) for line in lines if may_tell(line.decode(errors="replace"))]
        self._keep_steps(step_lines, text.count(b"\n"), len(text))

    def _keep_steps(
        self, step_lines: list[tuple[float, bytes]], dropped: int, dropped_bytes: int
    ) -> None:
        """Keeps the possible step lines among `dropped` lines of `dropped_bytes` bytes, up
        to `STEP_BYTES`, and counts the rest as left out."""
        lost = 0
        for arrived_line in step_lines:
            dropped_bytes -= len(arrived_line[1])
            if self._step_bytes + len(arrived_line[1]) > STEP_BYTES:
                lost += 1
                continue
            self._steps.append(arrived_line)
            self._step_bytes += len(arrived_line[1])
        if lines := dropped - len(step_lines) + lost:
            self._left_out += LeftOut(
                lines=lines, bytes=dropped_bytes, step_lines=lost, blind=self._test_error
            )

    def _hold(self, lines: list[bytes], now_s: float) -> None:
        for line in filter(None, lines):
            self._held.append((now_s, line[:LINE_BYTES]))
            self._held_bytes += len(self._held[-1][1])

    def _take_oldest(self) -> tuple[float, bytes]:
        oldest = self._held.popleft()
        self._held_bytes -= len(oldest[1])
        return oldest

    def _pass_on(self, now_s: float) -> None:
        """Forwards as many of the held lines as the rate allows, unless the owner is behind."""
        self._budget = min(BURST_BYTES, self._budget + (now_s - self._filled_s) * RATE_BYTES_PER_S)
        self._filled_s = now_s
        if self._outbox.is_behind:
            return
        forwarded = self._take_steps()
        while self._held and len(self._held[0][1]) <= self._budget:
            forwarded.append(self._take_oldest())
            self._budget -= len(forwarded[-1][1])
        if forwarded:
            self._send_lines(forwarded, now_s)

    def _take_steps(self) -> list[tuple[float, bytes]]:
        steps = list(self._steps)
        self._steps.clear()
        self._step_bytes = 0
        return steps

    def _finish(self, now_s: float) -> None:
        """Sends all held lines and an unfinished last line regardless of rate and backlog, because
        they may show why the log ends."""
        self._hold([self._unfinished_line], now_s)
        if self._steps or self._held or self._left_out:
            self._send_lines([*self._take_steps(), *self._held], now_s)

    def _send_lines(self, lines: list[tuple[float, bytes]], now_s: float) -> None:
        """Sends lines, and how much was left out before them. Without lines the message shows only
        that the program printed something."""
        texts = [[arrived_s, line.decode(errors="replace")] for arrived_s, line in lines]
        message: dict[str, Any] = {"event": "lines", "lines": texts}
        if self._left_out:
            message["left_out"], self._left_out = self._left_out.plain(), LeftOut()
        self._last_message_s = now_s
        self._outbox.send(message)
