"""Stores the logs of a failed attempt's nodes on the controller's machine, so that they are
available even if a node is lost.

    FOLDER/STUDY/TRIAL-ATTEMPT/node-0.log, node-1.log, ...    the first FIRST_CHARACTERS and last LAST_CHARACTERS of a node's log

The KEPT newest attempts of all studies together are kept.
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
        """Adds the next line."""
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
        """The kept text, with a line for what was left out."""
        gap = (
            [f"[autotune left out {number_of(self._left_out, 'line')} here]"]
            if self._left_out
            else []
        )
        return "".join(f"{line}\n" for line in (*self._first, *gap, *self._last))


def keep_logs(folder: Path, attempt: AttemptId, logs: Sequence[NodeLog]) -> str:
    """Writes the logs of an attempt. Returns their folder; empty if they cannot be written."""
    study, number, attempt_number = attempt
    attempt_folder = folder / study / f"{number}-{attempt_number}"
    try:
        attempt_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for node, log in enumerate(logs):
            (attempt_folder / f"node-{node}.log").write_text(log.text, encoding="utf-8")
    except OSError:
        return ""
    _prune(folder)
    return str(attempt_folder)


def _prune(folder: Path) -> None:
    """Deletes the oldest attempts, and folders of studies without attempts."""
    with contextlib.suppress(OSError):  # another controller prunes too
        attempts = sorted(folder.glob("*/*-*"), key=lambda attempt: attempt.stat().st_mtime)
        for attempt in attempts[: max(0, len(attempts) - KEPT)]:
            shutil.rmtree(attempt, ignore_errors=True)
            with contextlib.suppress(OSError):
                attempt.parent.rmdir()
