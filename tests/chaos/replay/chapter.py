"""The decisions of one controller, from its beginning to its death or the study's rest: it is built
as a resume builds it, and given its events again.

A controller is told the time by ticks, of which only those with consequences are kept. A decision
says the running time at which it was made, so the tick before it is known: it must be without
consequences, as it was.
"""

from __future__ import annotations

from typing import final

from autotune.ports import AttemptId, AttemptQueued, CloseAttempt, KeepSteps, StudyRecord
from autotune.search import Searcher
from autotune.spec import StudyStatus, Wanted
from autotune.study.assembly import Assembly
from autotune.study.beginning import Beginning
from autotune.study.controller import (
    AttemptAdopted,
    Command,
    Controller,
    EndStudy,
    EnterPhase,
    Event,
    NoteRest,
    NoteStarted,
    Tick,
)
from tests.chaos.replay.facts import Fact, differ_in_words, expected, kept
from tests.chaos.replay.found import Unfollowed
from tests.chaos.replay.history import STATES, Decided
from tests.chaos.replay.known import Known
from tests.chaos.replay.runner_events import WISHES, event_of, reason_of

WAITING_S = 30.0
"""how often a runner says at least that an attempt waits for ranks, s; what it said is not kept"""
_WISHED = {
    "PauseAsked": Wanted.PAUSE,
    "ResumeAsked": Wanted.RUN,
    "StopAsked": Wanted.STOP,
    "CancelAsked": Wanted.CANCEL,
}
_WITHOUT_CONSEQUENCES = (NoteStarted, KeepSteps)


@final
class Chapter:
    """One controller that decides again."""

    def __init__(
        self,
        record: StudyRecord,
        begins: Beginning,
        assembly: Assembly,
        searcher: Searcher,
        known: Known,
    ):
        self.begins, self.searcher = begins, searcher
        self.end: EndStudy | None = None
        """how the study came to rest under this controller"""
        self.stop_reason = begins.stop_reason
        """as it is kept with the study"""
        self._record, self._known = record, known
        self._has_ticked = False
        self.controller: Controller = begins.controller(
            record,
            assembly,
            searcher,
            past=known.told_in_order(),
            lost=known.lost,
        )

    def adopt(self, number: int, attempt: int) -> None:
        """An attempt of an earlier controller goes on under this one."""
        self.controller.handle(AttemptAdopted(id=AttemptId(self._record.id, number, attempt)))

    def decide(self, decided: Decided) -> Unfollowed | None:
        """Decides again; what does not follow. `known` has taken the decision's lines in."""
        name = str(decided.cause["event"])
        if name in _WISHED and _WISHED[name] not in self._known.wishes:
            return self._apart(
                decided, f"{name}", f"no {name}: what people want is to {self._known.wanted}"
            )
        event = event_of(self._record.id, decided, self._known.trial)
        unexpected = self._catch_up(decided, event)
        commands = unexpected or self.controller.handle(event)
        self._has_ticked |= isinstance(event, Tick)
        return self._compared(decided, commands)

    def _catch_up(self, decided: Decided, event: Event) -> list[Command]:
        """Lets the time pass until just before the event; the first commands that come of that,
        which nothing kept names."""
        is_start = decided.elapsed_s <= self.begins.elapsed_s
        if is_start and (
            isinstance(event, Tick | AttemptAdopted) or str(decided.cause["event"]) in WISHES
        ):
            return []
        if not self._has_ticked:
            self._has_ticked = True
            if commands := self._tick(self.begins.elapsed_s):
                return commands
        until = decided.elapsed_s
        while self._waiting() and until - self.controller.elapsed_s > WAITING_S:
            if commands := self._tick(self.controller.elapsed_s + WAITING_S):
                return commands
        return [] if isinstance(event, Tick) else self._tick(until)

    def _tick(self, elapsed_s: float) -> list[Command]:
        commands = self.controller.handle(Tick(now_s=elapsed_s))
        for attempt in self._waiting():
            self.controller.handle(AttemptQueued(id=attempt, reason=""))
        return [c for c in commands if not isinstance(c, _WITHOUT_CONSEQUENCES)]

    def _waiting(self) -> list[tuple[str, int, int]]:
        """Attempts that may wait for ranks: when they got them is not kept."""
        return [of for of, attempt in self.controller.attempts.live.items() if attempt.queued]

    def _compared(self, decided: Decided, commands: list[Command]) -> Unfollowed | None:
        recorded = [kept(line, self._known) for line in decided.lines]
        here = {(line.data["number"], line.data["attempt"]) for line in decided.of("attempt.ended")}
        again = self._known.closed - here
        news = [
            c
            for c in commands
            if not (isinstance(c, CloseAttempt) and (c.number, c.attempt) in again)
        ]
        wanted = [fact for command in news if (fact := self._expected(command)) is not None]
        if (differs := differ_in_words(recorded, wanted)) is not None:
            return self._apart(decided, *differs)
        if any(isinstance(c, EnterPhase) for c in commands):
            self.stop_reason = self.controller.stop_reason
        end = next((c for c in commands if isinstance(c, EndStudy)), None)
        if end is not None:
            self.end, self.stop_reason = end, str(end.result["stop_reason"])
            return self._rested(decided, end)
        if not recorded and not any(isinstance(c, NoteRest | EnterPhase) for c in commands):
            return self._apart(decided, "a decision without consequences", "none")
        return None

    def _expected(self, command: Command) -> Fact | None:
        num_gpus = self._record.study.workload.cluster.num_gpus
        return expected(
            command, self._known, num_gpus, lambda late: self.controller.late(late) is not None
        )

    def _rested(self, decided: Decided, end: EndStudy) -> Unfollowed | None:
        """Whether the study's status is the one that the decision came to. A pause that people took
        back, or that was left to another controller, has none."""
        line = decided.then
        if line is None or line.data.get("message") != end.message:
            is_silent = end.status is StudyStatus.PAUSED and (
                line is None or STATES[line.kind] is StudyStatus.RUNNING
            )
            said = f"{STATES[line.kind]}: {line.data.get('message')}" if line else "no end"
            return None if is_silent else self._apart(decided, said, f"{end.status}: {end.message}")
        status = STATES[line.kind]
        if status is not end.status and end.status is not StudyStatus.PAUSED:
            return self._apart(decided, str(status), str(end.status))
        return None

    def _apart(self, decided: Decided, recorded: str, expected: str) -> Unfollowed:
        because = f" because of {reason_of(decided.cause)}"
        return Unfollowed(event=decided.event, recorded=recorded + because, expected=expected)
