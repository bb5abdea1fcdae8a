"""A program's log on its way from the program to the owner of its keeper: lines with the time of
their arrival, bounded in memory and rate.

    burst    BURST_BYTES of text pass at once            rate    RATE_BYTES_PER_S pass in the long run
    beyond   lines wait, and so they do while more than BACKLOG_BYTES wait for the owner; of those that wait the last `LAST_BYTES` are kept. Of
             the lines before them those pass that may say something of a step, up to STEP_BYTES that the owner has not read; the others are left
             out and counted

An owner that is busy never holds the program up. Looking for step lines may, where it prints tens
of MB per second, and once while the trainer's reader is loaded.
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
"""that are read at once"""
LINE_BYTES = 1 << 16
"""longest part of one line that is kept"""
STEP_BYTES = 8 << 20
"""text of step lines that waits for a busy owner"""
LIFE_S = 1.0
"""longest time for which the owner hears nothing of a program that prints"""
RETRY_S = 0.2
"""time between two looks whether lines that wait may pass, while the program prints nothing"""
_LINE_END = re.compile(rb"[\r\n]+")


def widen(pipe: int) -> None:
    """Lets a pipe hold as much as is read at once, where the system allows that: a burst of lines
    then waits for nobody."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)


class StepTest(NamedTuple):
    """Which lines may say something of a step."""

    may_tell: Callable[[str], bool]
    mark: re.Pattern[bytes] | None = None
    """is found in each line that may tell; None: not known"""

    @classmethod
    def of(cls, may_tell: Callable[[str], bool], marks: tuple[str, ...]) -> StepTest:
        """`marks`: each line that may tell has one of these texts; empty: not known."""
        pattern = b"|".join(re.escape(mark.encode()) for mark in marks)
        return cls(may_tell, re.compile(pattern) if marks else None)


def _with_mark(text: bytes, mark: re.Pattern[bytes]) -> Iterator[bytes]:
    """The lines in which it is found. Of the others nothing is made: a program may print millions
    of them."""
    place = 0
    while found := mark.search(text, place):
        begin = max(
            place,
            text.rfind(b"\n", place, found.start()) + 1,
            text.rfind(b"\r", place, found.start()) + 1,
        )
        ended = _LINE_END.search(text, found.end())
        place = ended.start() if ended else len(text)
        yield text[begin:place]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Lines in a row, or of several gaps together."""

    lines: int = 0
    bytes: int = 0
    step_lines: int = 0
    """lines among them that may have said something of a step: the owner had no time to read so
    many"""
    blind: str = ""
    """why step lines could not be told from others; empty where they could"""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> LeftOut:
        """What a message of lines says of those before it."""
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
        """As a message carries it."""
        return asdict(self)

    @property
    def text(self) -> str:
        """How much, and whether it may have said something of a step."""
        size = (
            f"{self.bytes / 2**20:.1f} MiB"
            if self.bytes >= 2**20
            else f"{-(-self.bytes // 2**10)} KiB"
        )
        what = f"{self.lines} {'line' if self.lines == 1 else 'lines'} ({size})"
        if self.blind:
            return f"{what}, perhaps with step lines among them ({self.blind})"
        return f"{what}, with {self.step_lines or 'no'} step {'line' if self.step_lines == 1 else 'lines'} among them"


@final
class Outbox:
    """Messages to the owner. It never waits for it, but in `drain`. Several threads may use it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._unsent = bytearray()
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether something waits for the owner to read."""
        return bool(self._unsent)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the owner that only what must arrive should be sent."""
        return len(self._unsent) > BACKLOG_BYTES

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends the message, now or when the owner reads again."""
        with self._lock:
            self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
            self._flush()

    def flush(self) -> None:
        """Sends what waits, as far as the owner reads."""
        with self._lock:
            self._flush()

    def drain(self, timeout_s: float) -> None:
        """Waits until the owner has everything, or is gone."""
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

    Lines that may not pass yet are held in their order, up to `LAST_BYTES`; beyond that the oldest
    ones are left out, but for step lines. So the last `LAST_BYTES` of a log always arrive, and
    without a gap: neither the rate nor a busy owner cuts a traceback.
    """

    def __init__(self, log: int, outbox: Outbox, load_test: Callable[[], StepTest]) -> None:
        """`log`: the reading end of the program's output; closed at its end. `load_test`: loads the
        test for step lines; called by the time that lines have to be left out. Where it raises, no
        line is taken for one."""
        super().__init__(name="autotune-log", daemon=True)
        self._log, self._outbox = log, outbox
        self._load_test = load_test
        self._loader: threading.Thread | None = None
        self._test = StepTest(lambda _: False, re.compile(b"(?!)"))
        self._blind = ""
        """why step lines cannot be told from others"""
        self._steps: deque[tuple[float, bytes]] = deque()
        """step lines that may pass at any rate, older than those that are held"""
        self._step_bytes = 0
        self._told_s = time.monotonic()
        """when the owner was told of output last"""
        self._line = b""
        """not yet ended"""
        self._held: deque[tuple[float, bytes]] = deque()
        """lines that have not passed yet, with the time of their arrival"""
        self._held_bytes = 0
        self._left_out = LeftOut()
        """dropped after the lines that have passed and before those that are held"""
        self._budget, self._filled_s = float(BURST_BYTES), time.monotonic()

    def run(self) -> None:
        """Until nobody can write the log any more."""
        with contextlib.suppress(OSError):
            while True:
                if (self._held or self._steps) and not select.select([self._log], [], [], RETRY_S)[
                    0
                ]:
                    self._pass_on(time.monotonic())
                elif chunk := os.read(self._log, CHUNK_BYTES):
                    self._take(chunk, time.monotonic())
                else:
                    break
        self._finish(time.monotonic())
        os.close(self._log)

    def _take(self, chunk: bytes, now_s: float) -> None:
        passed = 0 if self._outbox.is_behind else int(self._budget)
        start = chunk.find(b"\n", passed) + 1
        end = chunk.rfind(b"\n", start, max(start, len(chunk) - LAST_BYTES)) + 1
        if 0 < start < end:  # neither pass nor stay: not even split
            self._split(chunk[:start], now_s)
            self._pass_on(now_s)
            self._leave_out(len(self._held))
            self._leave_out_flood(chunk[start:end], now_s)
            chunk = chunk[end:]
        self._split(chunk, now_s)
        self._pass_on(now_s)
        if self._budget < BURST_BYTES / 2:
            self._begin_to_load()
        if self._held_bytes > LAST_BYTES and len(self._held) > 1:
            kept_bytes = most = 0
            for _, line in reversed(self._held):
                kept_bytes += len(line)
                if most and kept_bytes > LAST_BYTES:
                    break
                most += 1
            self._leave_out(len(self._held) - most)
            self._pass_on(now_s)
        if now_s - self._told_s >= LIFE_S:  # a line without an end, or one that waits
            self._tell([], now_s)

    def _split(self, chunk: bytes, now_s: float) -> None:
        *lines, rest = _LINE_END.split(self._line + chunk)
        self._line = rest[:LINE_BYTES]
        self._hold(lines, now_s)

    def _begin_to_load(self) -> None:
        """Loads the test beside the log, which is read on meanwhile."""
        if self._loader is None:
            self._loader = threading.Thread(
                target=self._load, name="autotune-step-lines", daemon=True
            )
            self._loader.start()

    def _load(self) -> None:
        try:
            self._test = self._load_test()
        except Exception as error:  # such as a trainer that is not installed on this node
            self._blind = f"{type(error).__name__}: {error}"[:300]

    def _loaded(self) -> StepTest:
        self._begin_to_load()
        assert self._loader is not None
        self._loader.join()
        return self._test

    def _leave_out(self, count: int) -> None:
        """Drops so many of the lines that are held, the oldest, but for those that may say
        something of a step."""
        may_tell, mark = self._loaded()
        dropped = [self._take_oldest() for _ in range(count)]
        found = [
            line
            for line in dropped
            if (mark is None or mark.search(line[1])) and may_tell(line[1].decode(errors="replace"))
        ]
        self._keep_steps(found, len(dropped), sum(len(line) for _, line in dropped))

    def _leave_out_flood(self, text: bytes, now_s: float) -> None:
        """Drops whole lines that were not even held, but for those that may say something of a
        step."""
        may_tell, mark = self._loaded()
        lines = (
            line[:LINE_BYTES]
            for line in (_LINE_END.split(text) if mark is None else _with_mark(text, mark))
        )
        found = [(now_s, line) for line in lines if may_tell(line.decode(errors="replace"))]
        self._keep_steps(found, text.count(b"\n"), len(text))

    def _keep_steps(
        self, found: list[tuple[float, bytes]], dropped: int, dropped_bytes: int
    ) -> None:
        """Of lines that are dropped, with so many bytes, these may say something of a step."""
        lost = 0
        for line in found:
            dropped_bytes -= len(line[1])
            if self._step_bytes + len(line[1]) > STEP_BYTES:
                lost += 1
                continue
            self._steps.append(line)
            self._step_bytes += len(line[1])
        if lines := dropped - len(found) + lost:
            self._left_out += LeftOut(
                lines=lines, bytes=dropped_bytes, step_lines=lost, blind=self._blind
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
        """Sends as many of the held lines as the rate allows, while the owner is not behind."""
        self._budget = min(BURST_BYTES, self._budget + (now_s - self._filled_s) * RATE_BYTES_PER_S)
        self._filled_s = now_s
        if self._outbox.is_behind:
            return
        passed = self._take_steps()
        while self._held and len(self._held[0][1]) <= self._budget:
            passed.append(self._take_oldest())
            self._budget -= len(passed[-1][1])
        if passed:
            self._tell(passed, now_s)

    def _take_steps(self) -> list[tuple[float, bytes]]:
        steps = list(self._steps)
        self._steps.clear()
        self._step_bytes = 0
        return steps

    def _finish(self, now_s: float) -> None:
        """All that is held, and a last line without an end: they may say why the log ends, so
        neither the rate nor the backlog counts."""
        self._hold([self._line], now_s)
        if self._steps or self._held or self._left_out:
            self._tell([*self._take_steps(), *self._held], now_s)

    def _tell(self, lines: list[tuple[float, bytes]], now_s: float) -> None:
        """Sends lines, and what was left out before them; without lines: that there is output."""
        texts = [[arrived_s, line.decode(errors="replace")] for arrived_s, line in lines]
        message: dict[str, Any] = {"event": "lines", "lines": texts}
        if self._left_out:
            message["left_out"], self._left_out = self._left_out.plain(), LeftOut()
        self._told_s = now_s
        self._outbox.send(message)
