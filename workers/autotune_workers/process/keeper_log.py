"""A program's log on its way from the program to the owner of its keeper: lines with the time of their arrival, bounded in memory and rate.

    burst    BURST_BYTES of text pass at once            rate    RATE_BYTES_PER_S pass in the long run
    beyond   lines are left out and counted; of what was left out last, `LAST_BYTES` are kept for the case that the log ends there

The program is never held up: what the owner does not take in time is left out too, beyond BACKLOG_BYTES.
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
from collections.abc import Mapping
from typing import Any, final

BURST_BYTES = 4 << 20
RATE_BYTES_PER_S = 256 << 10
LAST_BYTES = 16 << 10
BACKLOG_BYTES = 2 << 20
LINE_BYTES = 1 << 16
"""longest part of one line that is kept"""
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

    def send(self, message: Mapping[str, Any], *, may_drop: bool = False) -> bool:
        """Sends the message, now or when the owner reads again; False when it was dropped instead, because too much waits already."""
        with self._lock:
            if may_drop and len(self._unsent) > BACKLOG_BYTES:
                return False
            self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
            self._flush()
            return True

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
    """Reads a log to its end and sends its lines."""

    def __init__(self, log: int, outbox: Outbox) -> None:
        """`log`: the reading end of the program's output; closed at its end."""
        super().__init__(name="autotune-log", daemon=True)
        self._log, self._outbox = log, outbox
        self._line = b""
        """not yet ended"""
        self._last = b""
        """the end of what was left out"""
        self._left_out = 0
        self._budget, self._filled_s = float(BURST_BYTES), time.monotonic()

    def run(self) -> None:
        """Until nobody can write the log any more."""
        with contextlib.suppress(OSError):
            while chunk := os.read(self._log, 1 << 16):
                self._take(chunk, time.monotonic())
        self._finish(time.monotonic())
        os.close(self._log)

    def _take(self, chunk: bytes, now_s: float) -> None:
        self._budget = min(BURST_BYTES, self._budget + (now_s - self._filled_s) * RATE_BYTES_PER_S)
        self._filled_s = now_s
        passed = len(chunk) if len(chunk) <= self._budget else chunk.rfind(b"\n", 0, int(self._budget)) + 1
        if passed:
            self._budget -= passed
            self._last = b""
            *lines, rest = _LINE_END.split(self._line + chunk[:passed])
            self._line = rest[:LINE_BYTES]
            self._send(lines, now_s)
        if passed < len(chunk):
            self._leave_out(chunk[passed:])

    def _leave_out(self, chunk: bytes) -> None:
        """Counts the lines; what comes after the last line end begins a line that may be passed on."""
        self._left_out += chunk.count(b"\n")
        self._last = (self._last + chunk)[-LAST_BYTES:]
        ended = chunk.rfind(b"\n") + 1
        self._line = (chunk[ended:] if ended else self._line + chunk)[:LINE_BYTES]

    def _finish(self, now_s: float) -> None:
        """The last lines, with one that has no end; after a gap those that would have been left out."""
        lines = _LINE_END.split(self._last or self._line)
        if self._last:
            lines = lines[1:] or lines  # the first one is cut
            self._left_out = max(0, self._left_out - sum(map(bool, lines)))
        self._send(
            lines, now_s, may_drop=False
        )  # they say why it ended, so even an owner that is far behind is sent them

    def _send(self, lines: list[bytes], now_s: float, *, may_drop: bool = True) -> None:
        texts = [[now_s, line[:LINE_BYTES].decode(errors="replace")] for line in lines if line]
        if not texts and not self._left_out:
            return
        message: dict[str, Any] = {"event": "lines", "lines": texts}
        if self._left_out:
            message["left_out"] = self._left_out
        if self._outbox.send(message, may_drop=may_drop):
            self._left_out = 0
        else:
            self._left_out += len(texts)
