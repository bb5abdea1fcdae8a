"""A program's log on its way from the program to the owner of its keeper: lines with the time of their arrival, bounded in memory and rate.

    burst    BURST_BYTES of text pass at once            rate    RATE_BYTES_PER_S pass in the long run
    beyond   lines wait, and so they do while more than BACKLOG_BYTES wait for the owner; of those that wait the last `LAST_BYTES` are kept, and
             the lines before them are left out and counted

The program is never held up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, final

BURST_BYTES = 4 << 20
RATE_BYTES_PER_S = 256 << 10
LAST_BYTES = 16 << 10
BACKLOG_BYTES = 2 << 20
LINE_BYTES = 1 << 16
"""longest part of one line that is kept"""
RETRY_S = 0.2
"""time between two looks whether lines that wait may pass, while the program prints nothing"""
_LINE_END = re.compile(rb"[\r\n]+")


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

    Lines that may not pass yet are held in their order, up to `LAST_BYTES`; beyond that the oldest ones are left out. So the last `LAST_BYTES`
    of a log always arrive, and without a gap: neither the rate nor a busy owner cuts a traceback.
    """

    def __init__(self, log: int, outbox: Outbox) -> None:
        """`log`: the reading end of the program's output; closed at its end."""
        super().__init__(name="autotune-log", daemon=True)
        self._log, self._outbox = log, outbox
        self._line = b""
        """not yet ended"""
        self._held: deque[tuple[float, bytes]] = deque()
        """lines that have not passed yet, with the time of their arrival"""
        self._held_bytes = 0
        self._left_out = 0
        """lines that were dropped after those that have passed and before those that are held"""
        self._budget, self._filled_s = float(BURST_BYTES), time.monotonic()

    def run(self) -> None:
        """Until nobody can write the log any more."""
        with contextlib.suppress(OSError):
            while True:
                if self._held and not select.select([self._log], [], [], RETRY_S)[0]:
                    self._pass_on(time.monotonic())
                elif chunk := os.read(self._log, 1 << 16):
                    self._take(chunk, time.monotonic())
                else:
                    break
        self._finish(time.monotonic())
        os.close(self._log)

    def _take(self, chunk: bytes, now_s: float) -> None:
        passed = 0 if self._outbox.is_behind else int(self._budget)
        start = chunk.find(b"\n", passed) + 1
        end = chunk.rfind(b"\n", start, max(start, len(chunk) - LAST_BYTES)) + 1
        if 0 < start < end:  # a flood: lines that can neither pass nor stay held are not even split
            self._split(chunk[:start], now_s)
            self._pass_on(now_s)
            self._left_out += len(self._held) + chunk.count(b"\n", start, end)
            self._held.clear()
            self._held_bytes = 0
            chunk = chunk[end:]
        self._split(chunk, now_s)
        self._pass_on(now_s)
        while self._held_bytes > LAST_BYTES and len(self._held) > 1:
            self._drop_oldest()
            self._left_out += 1

    def _split(self, chunk: bytes, now_s: float) -> None:
        *lines, rest = _LINE_END.split(self._line + chunk)
        self._line = rest[:LINE_BYTES]
        self._hold(lines, now_s)

    def _hold(self, lines: list[bytes], now_s: float) -> None:
        for line in filter(None, lines):
            self._held.append((now_s, line[:LINE_BYTES]))
            self._held_bytes += len(self._held[-1][1])

    def _drop_oldest(self) -> tuple[float, bytes]:
        oldest = self._held.popleft()
        self._held_bytes -= len(oldest[1])
        return oldest

    def _pass_on(self, now_s: float) -> None:
        """Sends as many of the held lines as the rate allows, while the owner is not behind."""
        self._budget = min(BURST_BYTES, self._budget + (now_s - self._filled_s) * RATE_BYTES_PER_S)
        self._filled_s = now_s
        if self._outbox.is_behind:
            return
        passed = []
        while self._held and len(self._held[0][1]) <= self._budget:
            passed.append(self._drop_oldest())
            self._budget -= len(passed[-1][1])
        self._send(passed)

    def _finish(self, now_s: float) -> None:
        """All that is held, and a last line without an end: they may say why the log ends, so neither the rate nor the backlog counts."""
        self._hold([self._line], now_s)
        self._send(list(self._held))

    def _send(self, lines: Iterable[tuple[float, bytes]]) -> None:
        texts = [[arrived_s, line.decode(errors="replace")] for arrived_s, line in lines]
        if not texts:
            return
        message: dict[str, Any] = {"event": "lines", "lines": texts}
        if self._left_out:
            message["left_out"], self._left_out = self._left_out, 0
        self._outbox.send(message)
