"""Queue of a runner's attempts that wait for the turn of this machine (`process.machine_turn`), and
the set of those that measure.

The turn is taken for an attempt and given back when the runner has no attempt left. While another
process waits for its turn, no further attempt begins, so that the turn also ends if a study runs
several at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import final

from autotune.ports import AttemptEnded, AttemptId, AttemptQueued, RunnerEvent, TrialRequest
from autotune_workers.gang.attempt_runner import QUEUED_EVERY_S
from autotune_workers.process.machine_turn import MachineTurn

LOOK_EVERY_S = 0.1
"""longest interval of checks for the turn, seconds"""


@final
class TurnQueue:
    """The attempts in order. Those with the turn are started by `begin`."""

    def __init__(self, turn: MachineTurn, begin: Callable[[TrialRequest], None]) -> None:
        """`begin`: starts an attempt on the runner's ranks."""
        self._turn, self._begin = turn, begin
        self._waiting: deque[TrialRequest] = deque()
        self._begun: set[AttemptId] = set()
        self._reported_s: dict[AttemptId, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no attempt is waiting."""
        return not self._waiting

    def __contains__(self, attempt: AttemptId) -> bool:
        """Whether the attempt is waiting or measuring."""
        return attempt in self._begun or any(request.id == attempt for request in self._waiting)

    def add(self, request: TrialRequest) -> list[RunnerEvent]:
        """Starts the attempt, or queues it. Raises what `begin` raises."""
        self._waiting.append(request)
        return self.look()

    def look(self) -> list[RunnerEvent]:
        """Starts the attempts that have the turn. Returns `AttemptQueued` events for the others, at
        intervals."""
        events: list[RunnerEvent] = []
        while self._waiting:
            request = self._waiting[0]
            must_yield = bool(self._begun) and self._turn.is_wanted
            reason = (
                "another study waits for its turn on this machine"
                if must_yield
                else self._turn.take(request.study)
            )
            if reason:
                return events + self._queued_events(reason)
            self._waiting.popleft()
            if self._reported_s.pop(request.id, None) is not None:  # its deadlines count from now
                events.append(
                    AttemptQueued(
                        id=request.id,
                        reason="resuming, because the other run has released this machine",
                    )
                )
            self._begun.add(request.id)
            try:
                self._begin(request)
            except BaseException:
                self.end(request.id)
                raise
        return events

    def cancel(self, attempt: AttemptId) -> list[RunnerEvent]:
        """Cancels the attempt if it is waiting."""
        remaining = deque(request for request in self._waiting if request.id != attempt)
        if len(remaining) == len(self._waiting):
            return []
        self._waiting = remaining
        self._reported_s.pop(attempt, None)
        if not (self._waiting or self._begun):
            self._turn.give_back()
        return [AttemptEnded(id=attempt, cancelled=True)]

    def hear(self, events: Iterable[RunnerEvent]) -> None:
        """Removes the attempts that have ended."""
        for event in events:
            if isinstance(event, AttemptEnded):
                self.end(event.id)

    def end(self, attempt: AttemptId) -> None:
        """Removes an attempt; the last one gives the turn back."""
        if attempt in self._begun:
            self._begun.remove(attempt)
            if not self._begun:
                self._turn.give_back()

    def close(self) -> None:
        """Gives the turn back. Idempotent."""
        self._waiting.clear()
        self._begun.clear()
        self._turn.give_back()

    def _queued_events(self, reason: str) -> list[RunnerEvent]:
        """`AttemptQueued` events of waiting attempts, for each at most every `QUEUED_EVERY_S`."""
        now_s, events = time.monotonic(), list[RunnerEvent]()
        for request in self._waiting:
            if now_s - self._reported_s.get(request.id, -QUEUED_EVERY_S) >= QUEUED_EVERY_S:
                self._reported_s[request.id] = now_s
                events.append(AttemptQueued(id=request.id, reason=reason))
        return events
