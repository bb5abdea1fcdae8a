"""Reports of one process: lines of JSON appended to a file per process.

The file is opened for each report, because a program may close descriptors that it does not know. A
forked process has its own file.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from typing import Any

MOST_BYTES = 64 << 20
"""largest size of a process's reports; later ones are dropped"""


class Channel:
    """Writes this process's reports. Never raises."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """folder of the reports; empty: none are written, except by `mirror`"""
        self._written = 0
        self.waiting: list[bytes] | None = None
        """lines to be sent by `mirror`; None if it is off"""

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
        except Exception:  # a value that JSON cannot represent
            return

    def write(self, lines: bytes) -> None:
        """Appends complete lines."""
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
        except Exception:  # a full disk or a missing folder
            return
