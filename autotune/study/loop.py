"""The loop of one study: ask -> run -> tell -> store. The first file to read.

    controller   decides: events in, commands out (`autotune.study.controller`)
    runner       runs trials: commands in, events out (`autotune.ports.TrialRunner`)
    lease        stores every decision, in one transaction, before it is carried out (`autotune.study.lease`)
    on_event     is called with every event, for the live view (`autotune.study.progress`)

Each round polls the runner, reads the clock and the users' requests, and passes these events to the
controller. All facts among the commands that result from one event are stored in one transaction;
then the commands are carried out in order. If this process dies, the store holds whole decisions
only, and another process continues after the last one: see `Controller.__init__`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autotune.errors import ConflictError
from autotune.ports import (
    AdoptingRunner,
    AttemptEnded,
    CloseAttempt,
    EndTrial,
    EventKind,
    Fact,
    KeepNote,
    KeepSteps,
    KeepTrial,
    LogRead,
    ProgramSeen,
    StartAttempt,
    StepsReported,
    StudyFields,
    StudyRecord,
    TrialRunner,
)
from autotune.spec import StudyStatus, Wanted
from autotune.spec.plain import to_plain
from autotune.study.controller import (
    PAUSED_ON_REQUEST,
    AttemptAdopted,
    CancelAsked,
    CancelAttempt,
    Command,
    Controller,
    EndStudy,
    EnterPhase,
    Event,
    InterruptAsked,
    KeepLate,
    NoteMachineChange,
    NoteQueued,
    NoteRest,
    NoteStarted,
    PauseAsked,
    ResumeAsked,
    StopAsked,
    Tick,
    cause,
    change_in_words,
    plan_in_words,
)
from autotune.study.lease import StudyLease
from autotune.study.program_remarks import remarks
from autotune.study.progress import (
    BestChanged,
    Notice,
    OnEvent,
    PhaseEntered,
    StudyRested,
    TrialAsked,
    TrialEnded,
    TrialRetried,
    TrialStarted,
    TrialStepped,
)

POLL_S = 0.2
"""longest wait for the runner's next event, s"""
GLANCE_S = 1.0
"""interval at which users' requests (pause, stop, cancel) are read and step metrics are stored, s;
also done when an attempt ends"""
CHECKPOINT_S = 2.0
"""interval at which elapsed time and rank-seconds are stored, s; a study that is killed loses at
most this much of them. Also done when a trial ends."""

ASKED: dict[Wanted, Event] = {
    Wanted.RUN: ResumeAsked(),
    Wanted.PAUSE: PauseAsked(),
    Wanted.STOP: StopAsked(),
    Wanted.CANCEL: CancelAsked(),
}
"""The event for each request of a user."""

OF_NOW = ("ray", "placed", "waiting")
"""keys of a study's result that describe the current process only; a later controller drops them"""


class Loop:
    """Runs one study until it ends or rests."""

    def __init__(
        self,
        controller: Controller,
        runner: TrialRunner,
        lease: StudyLease,
        *,
        on_event: OnEvent = lambda _: None,
        interrupted: Callable[[], bool | str] = lambda: False,
        left_s: Callable[[], float | None] = lambda: None,
        leave: bool = False,
        findings: Callable[[], Mapping[str, Any]] = dict,
        about: Mapping[str, Any] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """The caller closes the runner.

        interrupted()   true, or a reason, if the study must pause at once
        left_s()        seconds until the job of this process ends; None if unknown
        leave           an interrupted study keeps its status, so that another controller continues it; otherwise it is PAUSED
        findings()      findings besides the winner, as plain values that are stored with the study's result
        about           facts about this controller, stored there too
        """
        self.controller, self.runner, self.lease = controller, runner, lease
        self.on_event, self.interrupted, self.monotonic = on_event, interrupted, monotonic
        self._left_s = left_s
        self._leave, self._findings, self._about = leave, findings, dict(about or {})
        self._placed: list[dict[str, Any]] = []
        """nodes of the ranks of running attempts, or of the last ones that ran"""
        self._waiting: dict[int, str] = {}
        """why a trial waits for ranks, by its number"""
        self._steps: list[StepsReported] = []
        """step metrics that are not stored yet"""
        self._reported_remarks: set[str] = set()
        """texts about the program that were reported already"""
        self._change = ""
        """the last change of the machine's speed, in words"""
        self._result: dict[str, Any] = {}
        """the study's stored result: phase and stop reason, or the result at its end"""
        self._best: int | None = controller.best.number if controller.best else None
        self._end: StudyRecord | None = None

    def run(self) -> StudyRecord:
        """Run the study and return its record once no attempt is running.

        Raises `ConflictError` if another controller took over, `StoreUnavailableError` if the store
        stays unavailable, and `RunnerError` if nothing can be run. Attempts that are still running
        then end when the caller closes the runner.
        """
        try:
            return self._run()
        except ConflictError:
            if (record := self.lease.record()).status.is_terminal:
                return record  # cancelled by somebody just before a write
            raise

    def _run(self) -> StudyRecord:
        glanced = checked = self.monotonic()
        record = self.lease.record()
        self._result = {name: value for name, value in record.result.items() if name not in OF_NOW}
        self._placed = list(record.result.get("placed") or ())
        self._obey(record)
        self._adopt()
        self._handle(Tick(now_s=glanced, left_s=self._left_s()))
        while self._end is None:
            reported = self.runner.poll(POLL_S)
            events: list[Event] = [e for e in reported if not isinstance(e, LogRead | ProgramSeen)]
            self._report_remarks(event for event in reported if isinstance(event, ProgramSeen))
            now = self.monotonic()
            if why := self.interrupted():
                events.append(
                    InterruptAsked(reason=why) if isinstance(why, str) else InterruptAsked()
                )
            is_due = now - glanced >= GLANCE_S
            if is_due:
                glanced = now
                self._keep_steps()
            may_start_trial = is_due or any(isinstance(e, AttemptEnded) for e in events)
            if may_start_trial and (current := self.lease.glance()) is not None:
                self._obey(current)  # before the next trial is chosen
            if now - checked >= CHECKPOINT_S:
                checked = now
                self._checkpoint()
            for event in [*events, Tick(now_s=now, left_s=self._left_s())]:
                self._handle(event)
            self.lease.come_round()
        return self._end

    def _report_remarks(self, programs: Iterable[ProgramSeen]) -> None:
        """Store the remarks about each trial's program; report each text once per study."""
        for seen in programs:
            for text in remarks(seen, keeps_outputs=self.controller.study.keeps_outputs):
                self.lease.add_remark(seen.id.trial, text)
                if text not in self._reported_remarks:
                    self._reported_remarks.add(text)
                    self.on_event(Notice(message=f"trial {seen.id.trial}: {text}"))

    def _obey(self, record: StudyRecord) -> None:
        """Pass the request in the study's record to the controller. Raises `ConflictError` if the
        study has ended meanwhile."""
        if record.status.is_terminal:
            raise ConflictError(
                f"study {record.id} has ended as {record.status.lower()}",
                remedy="submit a new study",
            )
        if record.wanted is Wanted.STOP and record.status is not StudyStatus.STOPPING:
            self.lease.move(StudyStatus.STOPPING)
        self._handle(ASKED[record.wanted])

    def _adopt(self) -> None:
        """Adopt the attempts that an earlier controller left running, if the runner supports it."""
        if not isinstance(self.runner, AdoptingRunner):
            return
        for attempt in self.runner.adopt(self.lease.study_id, self.controller.cut_off):
            self.lease.adopt_attempt(attempt.trial, attempt.attempt)
            self._handle(AttemptAdopted(id=attempt))
            self.on_event(
                Notice(
                    message=f"trial {attempt.trial} continues, because its ranks kept running after their controller ended"
                )
            )

    def _handle(self, event: Event) -> None:
        commands = self.controller.handle(event)
        self._keep(event, commands)
        for command in commands:
            self._carry_out(command)

    def _keep(self, event: Event, commands: Sequence[Command]) -> None:
        """Store all facts among the commands in one transaction, before any is carried out."""
        for command in commands:
            self._locate(command)
        facts = [
            fact for command in commands if (fact := self._fact(command, commands)) is not None
        ]
        phases = [c for c in commands if isinstance(c, EnterPhase)]
        rest_changed = any(isinstance(c, NoteRest) for c in commands)
        end = next((c for c in commands if isinstance(c, EndStudy)), None)
        if phases:
            self._result = {
                "phase": str(phases[-1].phase),
                "stop_reason": self.controller.stop_reason,
            }
        if not (facts or phases or end or rest_changed):
            return
        if any(isinstance(fact, CloseAttempt | EndTrial) for fact in facts):
            facts = [*(KeepSteps(steps=steps) for steps in self._steps), *facts]
            self._steps = []
        why = {**cause(event), "elapsed_s": self.controller.elapsed_s}
        if end is None:
            self.lease.decide(
                why, facts, elapsed_s=self.controller.elapsed_s, result=self._result_document()
            )
            return
        self._result = dict(end.result)
        fields: StudyFields = {
            "elapsed_s": self.controller.elapsed_s,
            "baseline": end.baseline,
            "best": end.best,
            "speedup": end.speedup,
            "result": self._result_document(),
        }
        if end.status is StudyStatus.PAUSED and (self._leave or end.message == PAUSED_ON_REQUEST):
            self.lease.decide_pause(why, facts, message=end.message, **fields)
        else:
            self.lease.decide(why, facts, status=end.status, message=end.message, **fields)

    def _locate(self, command: Command) -> None:
        """Update `_placed` and `_waiting`."""
        live = {attempt.trial for attempt in self.controller.attempts.live}
        match command:
            case NoteQueued(number=number, reason=reason):
                self._waiting[number] = reason
                self._placed = [row for row in self._placed if row["trial"] in live - {number}]
            case NoteStarted(number=number, places=places):
                self._waiting.pop(number, None)
                kept = [row for row in self._placed if row["trial"] in live - {number}]
                self._placed = [*kept, *({"trial": number, **to_plain(place)} for place in places)]
            case CloseAttempt(number=number):  # the trial gets another attempt, perhaps elsewhere
                self._waiting.pop(number, None)
                self._placed = [row for row in self._placed if row["trial"] != number]
            case EndTrial(trial=trial):
                self._waiting.pop(trial.number, None)

    def _fact(self, command: Command, others: Sequence[Command]) -> Fact | None:
        """The fact to store for a command. None if there is none; step metrics are stored in bulk.
        `others`: all commands of the same event."""
        match command:
            case KeepTrial() | StartAttempt() | CloseAttempt() | EndTrial():
                return command
            case KeepLate(event=late) if (report := self.controller.late(late)) is not None:
                return EndTrial(trial=report)
            case NoteQueued(number=number, reason=reason):
                return KeepNote(
                    kind=EventKind.ATTEMPT_QUEUED, data={"number": number, "reason": reason}
                )
            case CancelAttempt(id=attempt_id, reason=reason):
                data = {"number": attempt_id.trial, "attempt": attempt_id.attempt, "reason": reason}
                return KeepNote(kind=EventKind.ATTEMPT_CANCELLED, data=data)
            case NoteMachineChange(change=change, again=again):
                ended = {c.trial.number: c.trial for c in others if isinstance(c, EndTrial)}
                self._change = f"{change_in_words(change, {**self.lease.trials(), **ended})} {plan_in_words(again)}"
                return KeepNote(
                    kind=EventKind.MACHINE_CHANGED,
                    data={"message": self._change, "again": list(again)},
                )
        return None

    def _carry_out(self, command: Command) -> None:
        """Carry out a command whose facts have been stored."""
        tell = self.on_event
        match command:
            case KeepTrial(trial=trial):
                tell(TrialAsked(trial=trial))
            case StartAttempt(request=request):
                self.runner.start(request)
            case NoteQueued(number=number, reason=reason):
                tell(Notice(message=f"trial {number} waits: {reason}"))
            case NoteStarted(number=number, attempt=attempt):
                tell(TrialStarted(number=number, attempt=attempt))
            case KeepSteps(steps=steps):
                self._steps.append(steps)
                tell(TrialStepped(number=steps.id.trial, steps=steps))
            case CancelAttempt(id=attempt_id):
                self.runner.cancel(attempt_id)
            case CloseAttempt(number=number, attempt=attempt, failure=failure):
                tell(TrialRetried(number=number, attempt=attempt, failure=failure))
            case EndTrial(trial=trial):
                tell(TrialEnded(trial=trial))
                if (best := self.controller.best) is not None and best.number != self._best:
                    self._best = best.number
                    tell(BestChanged(trial=best))
            case NoteMachineChange():
                tell(Notice(message=self._change))
            case EnterPhase(phase=phase, message=message):
                tell(PhaseEntered(phase=phase, message=message))
            case EndStudy():
                self._end = self.lease.record()
                tell(StudyRested(record=self._end))

    def _checkpoint(self) -> None:
        """Store elapsed time and rank-seconds."""
        self.lease.move(None, elapsed_s=self.controller.elapsed_s, result=self._result_document())

    def _result_document(self) -> dict[str, Any]:
        """The study's result as it is stored, with values that cannot be computed from the trials:
        rank-seconds (the trials' wall-clock times include outages and clock changes) and counts of
        configs that cannot be run here (they are not trials)."""
        waiting = [
            {"trial": number, "reason": reason} for number, reason in sorted(self._waiting.items())
        ]
        return {
            **self._result,
            **self._findings(),
            **self._about,
            **({"placed": self._placed} if self._placed else {}),
            **({"waiting": waiting} if waiting else {}),
            "gpu_s": self.controller.spent.gpu_s,
            "infeasible": dict(self.controller.infeasible),
        }

    def _keep_steps(self) -> None:
        self.lease.add_steps(self._steps)
        self._steps = []
