"""What a replay of a study's history found: which decisions of its controllers follow from what they knew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ports.study_record import HistoryEvent, StudyRecord
from autotune.spec import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollowed:
    """A decision that does not follow."""

    event: int
    """its number in the history; after the last one: what the study's record says"""
    recorded: str
    """what was kept, in words"""
    expected: str
    """what the controller would have decided, in words"""

    def __str__(self) -> str:
        return f"event {self.event} does not follow: recorded is {self.recorded}; expected {self.expected}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay of one study found."""

    decisions: int
    """in its history"""
    followed: int
    """of these were replayed and follow"""
    unfollowed: Unfollowed | None = None
    """the first that does not; those after it were not replayed"""
    not_checked: tuple[str, ...] = ()
    """what was not checked and why, in words"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        first = self.unfollowed
        return {
            "decisions": self.decisions,
            "followed": self.followed,
            "unfollowed": None
            if first is None
            else {"event": first.event, "recorded": first.recorded, "expected": first.expected},
            "not_checked": list(self.not_checked),
        }


Replay = Callable[[StudyRecord, Sequence[Trial], Sequence[HistoryEvent]], Replayed]
"""replays one study: its record, all trials by number and all events, as of one moment"""
