"""What a replay of a study's history found: which decisions of its controllers follow from what
they knew."""

from __future__ import annotations

from dataclasses import dataclass


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
