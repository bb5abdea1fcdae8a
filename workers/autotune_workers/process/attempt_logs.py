"""The logs of an attempt's nodes, kept on disk where the attempt failed: on the machine of the
controller, also when the node is lost.

    FOLDER/STUDY/TRIAL-ATTEMPT/node-0.log, node-1.log, ...    the first FIRST_CHARACTERS and the last LAST_CHARACTERS of each node's log

Of all studies together the KEPT newest attempts are kept.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import final

from autotune.ports import AttemptId
from autotune.spec.texts.as_text import number_of

FIRST_CHARACTERS = 256 << 10
LAST_CHARACTERS = 256 << 10
KEPT = 100


@final
class NodeLog:
    """The beginning and the end of one node's log, in memory."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._first_characters = 0
        self._last: deque[str] = deque()
        self._last_characters = 0
        self._left_out = 0

    def add(self, line: str) -> None:
        """The next line."""
        size = len(line) + 1
        if not self._last and self._first_characters + size <= FIRST_CHARACTERS:
            self._first.append(line)
            self._first_characters += size
            return
        self._last.append(line)
        self._last_characters += size
        while self._last_characters > LAST_CHARACTERS:
            self._last_characters -= len(self._last.popleft()) + 1
            self._left_out += 1

    @property
    def text(self) -> str:
        """What is kept."""
        gap = (
            [f"[autotune left out {number_of(self._left_out, 'line')} here]"]
            if self._left_out
            else []
        )
        return "".join(f"{line}\n" for line in (*self._first, *gap, *self._last))


def keep_logs(folder: Path, attempt: AttemptId, logs: Sequence[NodeLog]) -> str:
    """Writes the logs of an attempt; their folder, or an empty text when they cannot be written."""
    study, number, which = attempt
    place = folder / study / f"{number}-{which}"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for node, log in enumerate(logs):
            (place / f"node-{node}.log").write_text(log.text, encoding="utf-8")
    except OSError:
        return ""
    _prune(folder)
    return str(place)


def _prune(folder: Path) -> None:
    """Removes the oldest attempts, and studies of which none is left."""
    with contextlib.suppress(OSError):  # another controller prunes too
        attempts = sorted(folder.glob("*/*-*"), key=lambda attempt: attempt.stat().st_mtime)
        for attempt in attempts[: max(0, len(attempts) - KEPT)]:
            shutil.rmtree(attempt, ignore_errors=True)
            with contextlib.suppress(OSError):
                attempt.parent.rmdir()
