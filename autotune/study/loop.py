"""The loop of one study: ask -> run -> tell -> store. The first file to read.

    controller   decides: events in, commands out (`autotune.study.controller`)
    runner       runs trials: commands in, events out (`autotune.ports.TrialRunner`)
    lease        writes every fact to the store before anything is done about it (`autotune.study.lease`)
    on_event     is called with what happens, for the live view (`autotune.study.progress`)

Each round polls the runner, reads the clock and what people asked for, passes these events to the controller and carries out its commands in
order. When this process dies, the store holds enough for another one to continue: see `Controller.__init__`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from autotune.errors import ConflictError
from autotune.ports import AdoptingRunner, LogRead, StepsReported, StudyRecord, TrialRunner
from autotune.spec import StudyStatus
from autotune.study.controller import (
    PAUSED_ON_REQUEST,
    AttemptAdopted,
    CancelAsked,
    CancelAttempt,
    CloseAttempt,
    Command,
    Controller,
    EndStudy,
    EndTrial,
    EnterPhase,
    Event,
    InterruptAsked,
    KeepLate,
    KeepSteps,
    KeepTrial,
    NoteQueued,
    NoteStarted,
    PauseAsked,
    ResumeAsked,
    StartAttempt,
    StopAsked,
    Tick,
)
from autotune.study.lease import StudyLease
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
"""how often the loop reads the status that people set (pause, stop, cancel) and stores step metrics"""
CHECKPOINT_S = 2.0
"""how often elapsed time and rank-seconds are stored, besides at each trial's end; a killed study loses at most so much of its accounts"""

ASKED: dict[StudyStatus, Event] = {
    StudyStatus.RUNNING: ResumeAsked(),
    StudyStatus.PAUSED: PauseAsked(),
    StudyStatus.STOPPING: StopAsked(),
    StudyStatus.CANCELLED: CancelAsked(),
}
"""The event for each status that people may set in the store."""


class Loop:
    """Runs one study until it ends or rests."""

    def __init__(
        self,
        controller: Controller,
        runner: TrialRunner,
        lease: StudyLease,
        *,
        on_event: OnEvent = lambda _: None,
        interrupted: Callable[[], bool] = lambda: False,
        leave: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interrupted()` turns true when the study shall pause at once; `leave`: its status then stays, so that another controller takes it over. The caller closes the runner."""
        self.controller, self.runner, self.lease = controller, runner, lease
        self.on_event, self.interrupted, self.monotonic = on_event, interrupted, monotonic
        self._leave = leave
        self._steps: list[StepsReported] = []
        self._best: int | None = controller.best.number if controller.best else None
        self._end: StudyRecord | None = None

    def run(self) -> StudyRecord:
        """The study's record when nothing runs any more.

        Raises `ConflictError` when another controller took over, `StoreUnavailableError` when the store stays away, `RunnerError` when
        nothing can be run; then the caller's closing of the runner ends what still ran.
        """
        try:
            return self._run()
        except ConflictError:
            if (record := self.lease.record()).status.is_terminal:
                return record  # cancelled by somebody just before a write
            raise

    def _run(self) -> StudyRecord:
        glanced = checked = self.monotonic()
        if (asked := ASKED.get(self.lease.record().status)) is not None:
            self._handle(asked)
        self._adopt()
        self._handle(Tick(now_s=glanced))
        while self._end is None:
            events: list[Event] = [e for e in self.runner.poll(POLL_S) if not isinstance(e, LogRead)]
            now = self.monotonic()
            if self.interrupted():
                events.append(InterruptAsked())
            if now - glanced >= GLANCE_S:
                glanced = now
                self._keep_steps()
                if (record := self.lease.glance()) is not None and record.status in ASKED:
                    events.append(ASKED[record.status])
            if now - checked >= CHECKPOINT_S:
                checked = now
                self._checkpoint()
            for event in [*events, Tick(now_s=now)]:
                self._handle(event)
            self.lease.come_round()
        return self._end

    def _adopt(self) -> None:
        """Takes over the attempts that an earlier controller left running, where the runner can."""
        if not isinstance(self.runner, AdoptingRunner):
            return
        for attempt in self.runner.adopt(self.lease.study_id, self.controller.cut_off):
            _, number, launch = attempt
            self.lease.adopt_attempt(number, launch)
            self._handle(AttemptAdopted(id=attempt))
            self.on_event(
                Notice(message=f"trial {number} continues: its ranks outlived the controller that started them")
            )

    def _handle(self, event: Event) -> None:
        for command in self.controller.handle(event):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        lease, tell = self.lease, self.on_event
        match command:
            case KeepTrial(trial=trial):
                lease.add_trial(trial)
                tell(TrialAsked(trial=trial))
            case StartAttempt(request=request):
                lease.start_attempt(request.number, request.attempt)
                self.runner.start(request)
            case NoteQueued(number=number, reason=reason):
                tell(Notice(message=f"trial {number} waits: {reason}"))
            case NoteStarted(number=number, attempt=attempt):
                tell(TrialStarted(number=number, attempt=attempt))
            case KeepSteps(steps=steps):
                self._steps.append(steps)
                tell(TrialStepped(number=steps.id[1], steps=steps))
            case CancelAttempt(id=attempt_id):
                self.runner.cancel(attempt_id)
            case CloseAttempt(number=number, attempt=attempt, failure=failure):
                self._keep_steps()
                lease.end_attempt(number, attempt, failure)
                tell(TrialRetried(number=number, attempt=attempt, failure=failure))
            case EndTrial(trial=trial):
                self._keep_steps()
                lease.end_trial(trial)
                tell(TrialEnded(trial=trial))
                self._checkpoint()
                if (best := self.controller.best) is not None and best.number != self._best:
                    self._best = best.number
                    tell(BestChanged(trial=best))
            case KeepLate(event=late):
                if (report := self.controller.late(late)) is not None:
                    lease.end_trial(report)  # the store notes it as late and changes nothing
            case EnterPhase(phase=phase, message=message):
                lease.move(None, result=self._spent({"phase": str(phase), "stop_reason": self.controller.stop_reason}))
                tell(PhaseEntered(phase=phase, message=message))
            case EndStudy():
                self._rest(command)

    def _checkpoint(self) -> None:
        """Stores the time that the study and its ranks have taken."""
        self.lease.move(None, elapsed_s=self.controller.elapsed_s, result=self._spent(self.lease.record().result))

    def _spent(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """`result` with the rank-seconds, which a later controller cannot add up from the trials: their wall-clock times include outages and clock changes."""
        return {**result, "gpu_s": self.controller.spent.gpu_s}

    def _keep_steps(self) -> None:
        self.lease.add_steps(self._steps)
        self._steps = []

    def _rest(self, end: EndStudy) -> None:
        as_it_is = end.status is StudyStatus.PAUSED and (self._leave or end.message == PAUSED_ON_REQUEST)
        self._end = self.lease.move(
            None if as_it_is else end.status,  # on request the store says PAUSED, or somebody has just taken it back
            end.message,
            elapsed_s=self.controller.elapsed_s,
            baseline=end.baseline,
            best=end.best,
            speedup=end.speedup,
            result=self._spent(end.result),
        )
        self.on_event(StudyRested(record=self._end))
