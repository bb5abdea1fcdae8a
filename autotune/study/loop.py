"""The loop of one study: ask -> run -> tell -> store. The first file to read.

    controller   decides: events in, commands out (`autotune.study.controller`)
    runner       runs trials: commands in, events out (`autotune.ports.TrialRunner`)
    lease        writes every decision to the store, in one transaction, before anything is done about it (`autotune.study.lease`)
    on_event     is called with what happens, for the live view (`autotune.study.progress`)

Each round polls the runner, reads the clock and what people asked for, and passes these events to
the controller. All facts among the commands that follow from one event are stored at once; then the
commands are carried out in order. When this process dies, the store holds whole decisions, and
another process continues from the last of them: see `Controller.__init__`.
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
"""the longest wait for the runner's next event"""
GLANCE_S = 1.0
"""how often the loop reads what people want (pause, stop, cancel) and stores step metrics, besides
when an attempt ends"""
CHECKPOINT_S = 2.0
"""how often elapsed time and rank-seconds are stored, besides at each trial's end: a study that is
killed forgets at most so much of them"""

ASKED: dict[Wanted, Event] = {
    Wanted.RUN: ResumeAsked(),
    Wanted.PAUSE: PauseAsked(),
    Wanted.STOP: StopAsked(),
    Wanted.CANCEL: CancelAsked(),
}
"""The event for what people want of the study."""

OF_NOW = ("ray", "placed", "waiting")
"""what a study's result says of the moment, which no later controller takes over"""


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

        interrupted()   turns true, or says why, when the study shall pause at once
        left_s()        seconds until the job that the study runs in ends; None: no end is known
        leave           an interrupted study keeps its status, so that another controller takes it over; else it is PAUSED
        findings()      what the trials show beside the winner; plain values, stored with the study's result
        about           what is to be known of this controller; stored there too
        """
        self.controller, self.runner, self.lease = controller, runner, lease
        self.on_event, self.interrupted, self.monotonic = on_event, interrupted, monotonic
        self._left_s = left_s
        self._leave, self._findings, self._about = leave, findings, dict(about or {})
        self._placed: list[dict[str, Any]] = []
        """where the ranks are of the attempts that run, or of the last that ran"""
        self._waiting: dict[int, str] = {}
        """why each trial that waits for ranks does"""
        self._steps: list[StepsReported] = []
        self._said: set[str] = set()
        """what the probe saw that was said"""
        self._change = ""
        """the last change of the machine's speed, in words"""
        self._result: dict[str, Any] = {}
        """what is known of the study beside its trials, as it is stored"""
        self._best: int | None = controller.best.number if controller.best else None
        self._end: StudyRecord | None = None

    def run(self) -> StudyRecord:
        """The study's record when nothing runs any more.

        Raises `ConflictError` when another controller took over, `StoreUnavailableError` when the
        store stays away, `RunnerError` when nothing can be run; then the caller's closing of the
        runner ends what still ran.
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
        self._hear(record)
        self._adopt()
        self._handle(Tick(now_s=glanced, left_s=self._left_s()))
        while self._end is None:
            reported = self.runner.poll(POLL_S)
            events: list[Event] = [e for e in reported if not isinstance(e, LogRead | ProgramSeen)]
            self._say(event for event in reported if isinstance(event, ProgramSeen))
            now = self.monotonic()
            if why := self.interrupted():
                events.append(
                    InterruptAsked(reason=why) if isinstance(why, str) else InterruptAsked()
                )
            is_due = now - glanced >= GLANCE_S
            if is_due:
                glanced = now
                self._keep_steps()
            decides = is_due or any(isinstance(e, AttemptEnded) for e in events)
            if decides and (wishes := self.lease.glance()) is not None:
                self._hear(wishes)  # before the next trial is decided on
            if now - checked >= CHECKPOINT_S:
                checked = now
                self._checkpoint()
            for event in [*events, Tick(now_s=now, left_s=self._left_s())]:
                self._handle(event)
            self.lease.come_round()
        return self._end

    def _say(self, programs: Iterable[ProgramSeen]) -> None:
        """Keeps what was seen of trials that people should know, and tells each thing once."""
        for seen in programs:
            for text in remarks(seen, keeps_outputs=self.controller.study.keeps_outputs):
                self.lease.add_remark(seen.id.trial, text)
                if text not in self._said:
                    self._said.add(text)
                    self.on_event(Notice(message=f"trial {seen.id.trial}: {text}"))

    def _hear(self, record: StudyRecord) -> None:
        """Takes in what people want of the study, which may have ended meanwhile."""
        if record.status.is_terminal:
            raise ConflictError(
                f"study {record.id} has ended as {record.status.lower()}",
                remedy="submit a new study",
            )
        if record.wanted is Wanted.STOP and record.status is not StudyStatus.STOPPING:
            self.lease.move(StudyStatus.STOPPING)
        self._handle(ASKED[record.wanted])

    def _adopt(self) -> None:
        """Takes over the attempts that an earlier controller left running, where the runner can."""
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
        """Stores all facts that follow from the event in one transaction, before anything is done
        about them."""
        for command in commands:
            self._locate(command)
        facts = [
            fact for command in commands if (fact := self._fact(command, commands)) is not None
        ]
        phases = [c for c in commands if isinstance(c, EnterPhase)]
        heard = any(isinstance(c, NoteRest) for c in commands)
        end = next((c for c in commands if isinstance(c, EndStudy)), None)
        if phases:
            self._result = {
                "phase": str(phases[-1].phase),
                "stop_reason": self.controller.stop_reason,
            }
        if not (facts or phases or end or heard):
            return
        if any(isinstance(fact, CloseAttempt | EndTrial) for fact in facts):
            facts = [*(KeepSteps(steps=steps) for steps in self._steps), *facts]
            self._steps = []
        why = {**cause(event), "elapsed_s": self.controller.elapsed_s}
        if end is None:
            self.lease.decide(why, facts, elapsed_s=self.controller.elapsed_s, result=self._spent())
            return
        self._result = dict(end.result)
        fields: StudyFields = {
            "elapsed_s": self.controller.elapsed_s,
            "baseline": end.baseline,
            "best": end.best,
            "speedup": end.speedup,
            "result": self._spent(),
        }
        if end.status is StudyStatus.PAUSED and (self._leave or end.message == PAUSED_ON_REQUEST):
            self.lease.decide_pause(why, facts, message=end.message, **fields)
        else:
            self.lease.decide(why, facts, status=end.status, message=end.message, **fields)

    def _locate(self, command: Command) -> None:
        """Takes in where ranks are now, and which trials wait for some."""
        live = {attempt.trial for attempt in self.controller.attempts.live}
        match command:
            case NoteQueued(number=number, reason=reason):
                self._waiting[number] = reason
                self._placed = [row for row in self._placed if row["trial"] in live - {number}]
            case NoteStarted(number=number, places=places):
                self._waiting.pop(number, None)
                kept = [row for row in self._placed if row["trial"] in live - {number}]
                self._placed = [*kept, *({"trial": number, **to_plain(place)} for place in places)]
            case CloseAttempt(number=number):  # it is tried again, elsewhere
                self._waiting.pop(number, None)
                self._placed = [row for row in self._placed if row["trial"] != number]
            case EndTrial(trial=trial):
                self._waiting.pop(trial.number, None)

    def _fact(self, command: Command, others: Sequence[Command]) -> Fact | None:
        """What is stored of a command together with the others; None: nothing, or step metrics,
        which are stored in bulk."""
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
                said = {"number": attempt_id.trial, "attempt": attempt_id.attempt, "reason": reason}
                return KeepNote(kind=EventKind.ATTEMPT_CANCELLED, data=said)
            case NoteMachineChange(change=change, again=again):
                ended = {c.trial.number: c.trial for c in others if isinstance(c, EndTrial)}
                self._change = f"{change_in_words(change, {**self.lease.trials(), **ended})} {plan_in_words(again)}"
                return KeepNote(
                    kind=EventKind.MACHINE_CHANGED,
                    data={"message": self._change, "again": list(again)},
                )
        return None

    def _carry_out(self, command: Command) -> None:
        """Does what follows from facts that are stored by now."""
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
        """Stores the time that the study and its ranks have taken."""
        self.lease.move(None, elapsed_s=self.controller.elapsed_s, result=self._spent())

    def _spent(self) -> dict[str, Any]:
        """What is known of the study beside its trials: with the rank-seconds, which a later
        controller cannot add up from the trials (their wall-clock times include outages and clock
        changes), and the counts of configs that cannot be run here, which are no trials."""
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
