"""Attempts of one runner that wait for the turn of this machine (`process.machine_turn`), and those
that measure in it.

The turn is taken for an attempt and given back when no attempt of the runner is left. While another
process waits for it, no further attempt begins: of a study that runs several at once, too, each
turn ends.
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
"""longest time between two looks whether it is the runner's turn"""


@final
class TurnQueue:
    """The attempts in their order. `begin` starts those whose turn it is."""

    def __init__(self, turn: MachineTurn, begin: Callable[[TrialRequest], None]) -> None:
        """`begin`: starts an attempt on the runner's ranks."""
        self._turn, self._begin = turn, begin
        self._waiting: deque[TrialRequest] = deque()
        self._begun: set[AttemptId] = set()
        self._said_s: dict[AttemptId, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no attempt waits."""
        return not self._waiting

    def __contains__(self, attempt: AttemptId) -> bool:
        """Whether the attempt waits or measures."""
        return attempt in self._begun or any(request.id == attempt for request in self._waiting)

    def add(self, request: TrialRequest) -> list[RunnerEvent]:
        """Begins the attempt, or lets it wait. Raises what `begin` raises."""
        self._waiting.append(request)
        return self.look()

    def look(self) -> list[RunnerEvent]:
        """Begins the attempts whose turn it is; of the others `AttemptQueued` now and then."""
        events: list[RunnerEvent] = []
        while self._waiting:
            request = self._waiting[0]
            is_over = bool(self._begun) and self._turn.is_wanted
            reason = (
                "another study waits for its turn on this machine"
                if is_over
                else self._turn.take(request.study)
            )
            if reason:
                return events + self._say(reason)
            self._waiting.popleft()
            if self._said_s.pop(request.id, None) is not None:  # its own time begins now
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
        """Ends the attempt, if it waits."""
        left = deque(request for request in self._waiting if request.id != attempt)
        if len(left) == len(self._waiting):
            return []
        self._waiting = left
        self._said_s.pop(attempt, None)
        if not (self._waiting or self._begun):
            self._turn.give_back()
        return [AttemptEnded(id=attempt, cancelled=True)]

    def hear(self, events: Iterable[RunnerEvent]) -> None:
        """Takes note of attempts that have ended."""
        for event in events:
            if isinstance(event, AttemptEnded):
                self.end(event.id)

    def end(self, attempt: AttemptId) -> None:
        """The attempt no longer measures; the last one gives the turn back."""
        if attempt in self._begun:
            self._begun.remove(attempt)
            if not self._begun:
                self._turn.give_back()

    def close(self) -> None:
        """Gives the turn back. Idempotent."""
        self._waiting.clear()
        self._begun.clear()
        self._turn.give_back()

    def _say(self, reason: str) -> list[RunnerEvent]:
        """That the attempts wait, each every few seconds."""
        now_s, events = time.monotonic(), list[RunnerEvent]()
        for request in self._waiting:
            if now_s - self._said_s.get(request.id, -QUEUED_EVERY_S) >= QUEUED_EVERY_S:
                self._said_s[request.id] = now_s
                events.append(AttemptQueued(id=request.id, reason=reason))
        return events
