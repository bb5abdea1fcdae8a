"""Reports of one process: lines of JSON, appended to a file of its own.

The file is opened anew for each report: a program may close descriptors that it does not know. A
process that was forked reports for itself.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from typing import Any

MOST_BYTES = 64 << 20
"""of one process; what comes after is left out"""


class Channel:
    """Where this process reports. Never raises."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """empty: it reports nowhere, unless another way is found"""
        self._written = 0
        self.waiting: list[bytes] | None = None
        """lines that also go another way, where there is one (`mirror`)"""

    def send(self, kind: str, **values: Any) -> None:
        """Appends one report."""
        try:
            import json

            pid = os.getpid()
            line = (
                json.dumps({"kind": kind, "pid": pid, **values}, separators=(",", ":")).encode()
                + b"\n"
            )
            if self.waiting is not None:
                self.waiting.append(line)
            self.write(line)
        except Exception:  # a value that is no JSON: the program goes on
            return

    def write(self, lines: bytes) -> None:
        """Appends lines that are whole."""
        try:
            self._written += len(lines)
            if self._written > MOST_BYTES or not self.folder:
                return
            pid = os.getpid()
            file = os.open(
                os.path.join(self.folder, str(pid) + ".jsonl"),
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
                0o644,
            )
            try:
                os.write(file, lines)
            finally:
                os.close(file)
        except Exception:  # a full disk, a folder that is gone: the program goes on
            return
