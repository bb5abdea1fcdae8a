"""The controller: what a study does next. A pure machine: events in, commands out; no clock, no
I/O, no randomness of its own.

    baseline -> search -> finals -> ended

It owns the status of every trial, the ranks in use, the budget, retries, deadlines, pause, stop and
cancel. It is rebuilt from the trials of the store: what was told is told again in the same order,
so the searcher goes on with the same next config, and a trial whose attempt was cut off gets
another attempt.

Laws, checked by a state machine test over any order of events: never more ranks than the capacity,
never more trials than the budget; a trial becomes terminal once and stays so; every trial that was
asked is told exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptQueued,
    AttemptStarted,
    CloseAttempt,
    EndTrial,
    KeepSteps,
    KeepTrial,
    StartAttempt,
    StepsReported,
)
from autotune.spec import (
    Failure,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.study.controller.accounts import Accounts
from autotune.study.controller.admission import Admission, Correct, Predict, Refuse
from autotune.study.controller.attempts import CUT_OFF, OVERDUE, SILENT, UNASKED, Attempt, Attempts
from autotune.study.controller.budget import Spent, everything_is_over
from autotune.study.controller.commands import (
    TIME_IS_OVER,
    AttemptAdopted,
    CancelAsked,
    CancelAttempt,
    Command,
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
    StudyPhase,
    Tick,
)
from autotune.study.controller.ending import Ending
from autotune.study.controller.finals.remeasure import unfairly_judged
from autotune.study.controller.infeasible import InfeasibleConfigs
from autotune.study.controller.phases import Ask
from autotune.study.controller.proxy_phases import phases_of
from autotune.study.controller.rest import RestRequest
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.trial_index import TrialIndex
from autotune.study.controller.trial_requests import awaits_reference, request_for

if TYPE_CHECKING:
    from autotune.search import Searcher


class Controller:
    """Decides for one study, from its first trial to its winner."""

    def __init__(
        self,
        *,
        study_id: str,
        study: Study,
        searcher: Searcher,
        capacity: int,
        baseline: ParallelConfig | None,
        predict: Predict = lambda _: None,
        correct: Correct = lambda _, estimate, __: estimate,
        refuse: Refuse = lambda _: "",
        past: Sequence[Trial] = (),
        lost: Mapping[int, int] = MappingProxyType({}),
        elapsed_s: float = 0.0,
        gpu_s: float | None = None,
        stop_reason: str = "",
        references: Mapping[int, ParallelConfig] = MappingProxyType({}),
        fp32_losses: Mapping[int, tuple[float, ...]] = MappingProxyType({}),
        goes_on: bool = False,
    ) -> None:
        """What it needs of the study and of the machine:

            capacity                   ranks of the runner
            baseline                   the baseline; None: there is none to beat
            predict, correct, refuse   see `admission`
            references                 fp32 configs by global batch. Each is measured before another precision is tried at its batch, the baseline aside
            fp32_losses                losses by tokens per step that earlier studies measured
            goes_on                    whether the study's job begins again after its end, so that no winner must be named before

        and of the controllers before it:

            past                       the trials of the store, terminal ones in the order in which they ended
            lost                       by trial, how many of its attempts were lost
            elapsed_s, gpu_s           running time and rank-seconds at the last checkpoint; `gpu_s` None: add up what was measured
            stop_reason                why the search has ended, where it has
        """
        self.study_id, self.study = study_id, study
        self.attempts = Attempts(capacity, lost)
        self.index = TrialIndex(study)
        self.phase = StudyPhase.BASELINE
        self.stop_reason = stop_reason
        self._scorer = Scorer(study, fp32_losses)
        self._admission = Admission(
            study_id,
            study,
            self.index,
            self._scorer,
            capacity,
            predict=predict,
            correct=correct,
            refuse=refuse,
        )
        self._infeasible = InfeasibleConfigs(
            searcher, capacity, has_target=study.at_hand is not None
        )
        self._ending = Ending(study, self.index, self._scorer, self._infeasible)
        self._phases = phases_of(
            study,
            searcher,
            self.index,
            self._scorer,
            baseline=baseline,
            references=references,
            refuse=refuse,
        )
        self._waiting, self._cut_off = list[int](), list[int]()
        self._adopted: set[AttemptId] = set()
        self._rest = RestRequest()
        self._goes_on = goes_on
        self._left_s: float | None = None
        self._longest_s = 0.0
        """of the attempts that ended with a measurement, from their launch on"""
        self._out: list[Command] = []
        self._restore(past)
        self._accounts = Accounts(
            self.index, self.attempts, self._infeasible, elapsed_s=elapsed_s, gpu_s=gpu_s
        )

    def handle(self, event: Event) -> list[Command]:
        """Takes in one event; what is to be done about it, in order."""
        match event:
            case Tick():
                self._left_s = event.left_s
                self._pass_time(event.now_s)
            case AttemptAdopted() if event.id in self.cut_off:
                self._adopted.add(event.id)
            case AttemptEnded():
                self._end_attempt(event)
            case AttemptQueued() if event.id in self.attempts.live:
                if self.attempts.queue(event.id, self._accounts.now_s):
                    self._out.append(NoteQueued(number=event.id.trial, reason=event.reason))
            case AttemptStarted() if event.id in self.attempts.live:
                self._out.append(
                    NoteStarted(
                        number=event.id.trial, attempt=event.id.attempt, places=event.places
                    )
                )
            case StepsReported() if event.id in self.attempts.live:
                self._out.append(KeepSteps(steps=event))
            case PauseAsked() | ResumeAsked() | StopAsked() | CancelAsked() | InterruptAsked():
                if self.phase is not StudyPhase.ENDED and self._rest.hear(event):
                    self._note_rest()
        if self.phase is not StudyPhase.ENDED and self._accounts.has_begun:
            self._advance()
        out, self._out = self._out, []
        return out

    @property
    def cut_off(self) -> tuple[AttemptId, ...]:
        """Attempts that ran when an earlier controller ended, until the first `Tick`: those that
        nobody adopts are launched again."""
        return tuple(
            AttemptId(self.study_id, number, self.trials[number].attempts)
            for number in self._cut_off
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds that the study has been running, without pauses."""
        return self._accounts.elapsed_s

    @property
    def trials(self) -> Mapping[int, Trial]:
        """All trials by number."""
        return self.index.trials

    @property
    def best(self) -> Trial | None:
        """The best measured so far."""
        return self.index.best

    @property
    def spent(self) -> Spent:
        """What is used up of the budget."""
        usual_s = self.index.usual_s
        longest = max(1.0, self._longest_s / usual_s) if usual_s else 1.0
        return replace(
            self._accounts.spent, left_s=None if self._goes_on else self._left_s, longest=longest
        )

    @property
    def infeasible(self) -> Mapping[str, int]:
        """Configs that cannot be run here, counted by reason."""
        return self._infeasible.counts

    def late(self, event: AttemptEnded) -> Trial | None:
        """What a late report says of its trial; None when that trial is not over, so that the
        report must not touch it."""
        return self._scorer.late(self.trials.get(event.id.trial), event)

    # ---- what happened

    def _restore(self, past: Sequence[Trial]) -> None:
        for trial in past:
            self.index.put(trial)
            if trial.status.is_terminal:
                self._learn(trial)
        by_number = sorted(past, key=lambda t: t.number)
        self.phase = self._phases.restore(by_number)
        for trial in by_number:
            if not trial.status.is_terminal:
                (self._cut_off if trial.status is TrialStatus.RUNNING else self._waiting).append(
                    trial.number
                )

    def _pass_time(self, now_s: float) -> None:
        if not self._accounts.has_begun:
            for attempt in self.cut_off:
                if attempt in self._adopted:
                    self.attempts.begin(
                        attempt,
                        self.trials[attempt.trial].config.world_size,
                        now_s,
                        self.study.measure,
                    )
                else:
                    self._retry(attempt.trial, CUT_OFF)
            self._cut_off = []
            # an earlier controller may have asked for a trial and died before it refused it, or had
            # a runner with more ranks
            self._waiting = [n for n in self._waiting if not self._is_refused(self.trials[n])]
        self._accounts.pass_time(now_s)

    def _end_attempt(self, event: AttemptEnded) -> None:
        attempt = self.attempts.end(event.id, self._accounts.now_s)
        if attempt is None:
            self._out.append(KeepLate(event=event))
            return
        trial = self.trials[attempt.number]
        if event.measurement is not None:
            self._longest_s = max(self._longest_s, self._accounts.now_s - attempt.since_s)
        if attempt.cancelled and (event.cancelled or attempt.overdue):
            self._end_trial(attempt.end_of(trial))
        elif event.cancelled:
            self._retry(trial.number, UNASKED)
        elif event.failure is not None and event.failure.kind.is_retried:
            self._retry(trial.number, event.failure)
        else:
            self._end_trial(self._scorer.ended(trial, event))

    def _retry(self, number: int, failure: Failure) -> None:
        trial = self.trials[number]
        may_retry = self.attempts.may_retry(trial, failure)
        if self._rest.kills:
            self._end_trial(replace(trial, status=TrialStatus.CANCELLED, reason=self._rest.reason))
        elif may_retry:
            self._out.append(CloseAttempt(number=number, attempt=trial.attempts, failure=failure))
            self._waiting.insert(0, number)
        else:
            self._end_trial(replace(trial, status=TrialStatus.FAILED, failure=failure))

    def _end_trial(self, trial: Trial) -> None:
        known = len(self.index.levels.changes)
        self.index.put(trial)
        self._out.append(EndTrial(trial=trial))
        self._learn(trial)
        if len(changes := self.index.levels.changes) > known:
            again = tuple(t.number for t in unfairly_judged(self.index, self.study))
            self._out.append(NoteMachineChange(change=changes[-1], again=again))

    def _learn(self, trial: Trial) -> None:
        self._scorer.learn(trial)
        self._phases.learn(trial)

    # ---- what to do next

    def _advance(self) -> None:
        now_s = self._accounts.now_s
        for attempt in self.attempts.late(now_s):
            if attempt.cancelled:
                self.attempts.give_up(attempt)
                silent = replace(attempt, cancelled=f"{attempt.cancelled}; {SILENT}")
                self._end_trial(silent.end_of(self.trials[attempt.number]))
            else:
                self._cancel(attempt, OVERDUE, overdue=True)
        if self._rest.kills:
            self._cancel_all(self._rest.reason)
        elif over := everything_is_over(self.spent, self.study.budget):
            self.stop_reason = self.stop_reason or over
            self._cancel_all(over)
            if self._rest.ask(StudyStatus.COMPLETED, over):
                self._note_rest()
        elif self._lacks_time and (self._left_s or 0.0) <= 0.0:
            self._pause_in_time()
            self._cancel_all(TIME_IS_OVER)
        if self._rest.status is None:
            self._go_on()
        elif not self.attempts.live:
            self._come_to_rest()

    def _cancel_all(self, why: str) -> None:
        for attempt in self.attempts.live.values():
            self._cancel(attempt, why)

    def _cancel(self, attempt: Attempt, why: str, *, overdue: bool = False) -> None:
        if self.attempts.ask_end(attempt, why, self._accounts.now_s, overdue=overdue):
            self._out.append(CancelAttempt(id=attempt.id, reason=why))

    @property
    def _lacks_time(self) -> bool:
        """Whether the job ends before a trial that begins now."""
        return self._left_s is not None and self._left_s <= max(self.index.usual_s, self._longest_s)

    def _rest_in_time(self) -> None:
        """Before the job ends: with a winner where the finals have had their rounds, further ones
        aside that a tie asks for; else paused."""
        if self.phase is StudyPhase.FINALS and not self._goes_on and self._ending.has_final_rounds:
            self._finish("")
            return
        self._pause_in_time()
        self._come_to_rest()

    def _pause_in_time(self) -> None:
        if self._rest.ask(StudyStatus.PAUSED, TIME_IS_OVER):
            self._note_rest()

    def _note_rest(self) -> None:
        self._out.append(NoteRest(status=self._rest.status, reason=self._rest.reason))

    def _go_on(self) -> None:
        while self.phase is not StudyPhase.ENDED:
            if self._lacks_time:
                if not self.attempts.live:
                    self._rest_in_time()
                return
            while self._waiting and self._may_start(self.trials[self._waiting[0]]):
                self._start(self._waiting.pop(0))
            if self._waiting:
                if not self.attempts.live:
                    self._finish(
                        "ranks are still held by attempts that the runner never reported as ended"
                    )
                return
            move = self._phases.next_move(
                self.phase, running=len(self.attempts.live), spent=self.spent
            )
            if move is None:
                return
            for ask in move.asks:
                self._ask(ask)
            if move.phase is not None:
                self._enter(move.phase, move.message)
            elif not move.asks:
                self._finish("", stop_reason=move.message)

    def _ask(self, ask: Ask) -> None:
        trial = self._admission.trial_of(ask)
        if ask.purpose is not TrialPurpose.FINAL and (refusal := self._admission.refusal(trial)):
            self._infeasible.refuse(ask.config, refusal)
            self._phases.refused(replace(trial, status=TrialStatus.INFEASIBLE, reason=refusal))
            return
        self.index.put(trial)
        self._out.append(KeepTrial(trial=trial))
        if not self._is_refused(trial):
            self._waiting.append(trial.number)

    def _is_refused(self, trial: Trial) -> bool:
        """Whether a trial of the store cannot be run any more, because the runner has fewer ranks
        than before; then it ends: as INFEASIBLE, or as CANCELLED where an attempt of it ran."""
        if refusal := self._admission.refusal(trial):
            status = TrialStatus.CANCELLED if trial.attempts else TrialStatus.INFEASIBLE
            self._end_trial(replace(trial, status=status, reason=refusal))
        return bool(refusal)

    def _may_start(self, trial: Trial) -> bool:
        """Whether there are ranks for it, and its reference is there."""
        running = [self.trials[attempt.number] for attempt in self.attempts.live.values()]
        return trial.config.world_size <= self.attempts.free and not awaits_reference(
            trial, running
        )

    def _start(self, number: int) -> None:
        trial = replace(
            self.trials[number],
            status=TrialStatus.RUNNING,
            attempts=self.trials[number].attempts + 1,
        )
        self.index.put(trial)
        request = request_for(trial, self.study_id, self.study, self.index, self._scorer)
        self.attempts.begin(
            request.id, trial.config.world_size, self._accounts.now_s, self.study.measure
        )
        self._out.append(StartAttempt(request=request))

    def _enter(self, phase: StudyPhase, message: str) -> None:
        if phase is StudyPhase.FINALS:
            self.stop_reason = message
        self.phase = phase
        self._out.append(EnterPhase(phase=phase, message=message))

    def _come_to_rest(self) -> None:
        if self._rest.status is not StudyStatus.PAUSED:
            self._finish(self._rest.reason, cancelled=self._rest.status is StudyStatus.CANCELLED)
            return
        self._out.append(self._ending.paused(self.phase, self.stop_reason, self._rest.reason))
        self.phase = StudyPhase.ENDED

    def _finish(self, why: str, *, cancelled: bool = False, stop_reason: str = "") -> None:
        """Ends the study with what is known; `why` is empty when it ran its course, which
        `stop_reason` may say why."""
        for number in self._waiting:
            self._end_trial(replace(self.trials[number], status=TrialStatus.CANCELLED, reason=why))
        self._waiting = []
        self.stop_reason = why or stop_reason or self.stop_reason
        self._out.append(self._ending.ended(self.phase, self.stop_reason, why, cancelled=cancelled))
        self.phase = StudyPhase.ENDED
