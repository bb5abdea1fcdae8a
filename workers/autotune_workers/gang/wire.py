"""Messages between a runner and its ranks: one JSON object per line, plain values only.

    runner -> rank   {"command": "run" | "store" | "stop" | "abort" | "where" | "exit", ...}
    rank -> runner   {"event": "ready" | "store" | "heartbeat" | "step" | "done" | "failed" | "idle" | "where" | "gone", ...}

Every message about a trial has `run`, the number of the launch on this gang, so that late messages
of earlier launches can be ignored. Non-finite floats are written as in Python's json (NaN,
Infinity), as both ends are Python. `autotune.spec.plain` converts values to plain ones and back.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

MAX_LINE_BYTES = 64 << 20
"""longer lines are refused as errors of the other end"""


def to_line(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Lines:
    """Reads messages from a byte stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that this chunk completes. Raises `ValueError` for a line that is not JSON
        or too long."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a message exceeds {MAX_LINE_BYTES} bytes")
        return [json.loads(line) for line in lines if line]
