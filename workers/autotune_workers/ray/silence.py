"""Silence: for how long an actor has given no sign of life, and when its node therefore counts as lost.

An actor answers a `listen` call at least once a second, with messages or without. Ray itself notices a node that is frozen or cut off after 62 to
65 s. Time is counted on a clock that stands still while nobody listens: an owner that was stopped or busy for a while takes nobody for lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

LOST_S = 15.0
"""without a sign of life, after which a node is lost"""
LONGEST_PAUSE_S = 1.0
"""most time that passes between two looks at the clock"""


@final
class ListeningClock:
    """Seconds that its owner spent listening."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        """`read`: a clock that never stands still, s."""
        self._read, self._now_s, self._looked_s = read, 0.0, read()

    def look(self) -> float:
        """The time now; since the last look at most `LONGEST_PAUSE_S` later."""
        looked_s, self._looked_s = self._looked_s, self._read()
        self._now_s += min(self._looked_s - looked_s, LONGEST_PAUSE_S)
        return self._now_s


@final
class Silence:
    """Of one actor. One that was never heard is still being started, and is not silent."""

    def __init__(self, lost_s: float = LOST_S) -> None:
        self._lost_s = lost_s
        self._heard_s: float | None = None

    def end(self, now_s: float) -> None:
        """A sign of life."""
        self._heard_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """For how long; 0 before the first sign of life."""
        return 0.0 if self._heard_s is None else now_s - self._heard_s

    def lasts_too_long(self, now_s: float) -> bool:
        """Whether the node of the actor is lost."""
        return self.lasts_s(now_s) >= self._lost_s

    def reason(self, address: str) -> str:
        """Why the node at that address is lost, in words."""
        return f"node {address} was silent for {self._lost_s:g} s: it is down, frozen or cut off"
