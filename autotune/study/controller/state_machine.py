"""The controller: decides what a study does next. A pure state machine: events in, commands out; no
clock, no I/O, no randomness.

    baseline -> search -> finals -> ended

It owns the status of every trial, the ranks in use, the budget, retries, deadlines, pause, stop and
cancel. It is restored from the trials in the store: they are told to the searcher again in the same
order, so that it proposes the same next config, and a trial whose attempt was cut off gets another
attempt.

Invariants, checked by a state machine test with arbitrary sequences of events: never more ranks than
the capacity; never more trials than the budget; a trial becomes terminal once and stays so; every
trial that the searcher was asked for is told to it exactly once.
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
from autotune.study.controller.attempts import (
    CUT_OFF,
    OVERDUE,
    PROGRAM_DEFAULTS,
    SILENT,
    Attempt,
    Attempts,
)
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
        """Inputs from the study and the machine:

            capacity                   number of ranks of the runner
            baseline                   the baseline; None if there is none
            predict, correct, refuse   see `admission`
            references                 fp32 configs by global batch. Each is measured before other precisions are tried at its batch, except the baseline
            fp32_losses                losses measured by earlier studies, by tokens per step
            goes_on                    whether the study's job is restarted after its end, so that no winner need be decided before

        and from earlier controllers:

            past                       the stored trials, terminal ones in the order in which they ended
            lost                       number of lost attempts by trial number
            elapsed_s, gpu_s           running time and rank-seconds at the last checkpoint; `gpu_s` None: add up the measured trials
            stop_reason                why the search has ended; empty if it has not
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
        """longest time of an attempt that ended with a measurement, from its launch, s"""
        self._out: list[Command] = []
        self._restore(past)
        self._accounts = Accounts(
            self.index, self.attempts, self._infeasible, elapsed_s=elapsed_s, gpu_s=gpu_s
        )

    def handle(self, event: Event) -> list[Command]:
        """Process one event and return the commands to carry out, in order."""
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
        """Attempts that were running when an earlier controller ended. Those that are not adopted
        before the first `Tick` are launched again."""
        return tuple(
            AttemptId(self.study_id, number, self.trials[number].attempts)
            for number in self._cut_off
        )

    @property
    def elapsed_s(self) -> float:
        """Running time of the study without pauses, s."""
        return self._accounts.elapsed_s

    @property
    def trials(self) -> Mapping[int, Trial]:
        """All trials by number."""
        return self.index.trials

    @property
    def best(self) -> Trial | None:
        """The best measured trial so far."""
        return self.index.best

    @property
    def spent(self) -> Spent:
        """The used part of the budget."""
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
        """The trial as a late report would have ended it; None if the trial is not terminal, so that
        the report must not change it."""
        return self._scorer.late(self.trials.get(event.id.trial), event)

    # ---- events

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
            # an earlier controller may have stored a trial and died before it rejected it, or had a
            # runner with more ranks
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
            self._retry(trial.number, PROGRAM_DEFAULTS)
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
        known_changes = len(self.index.levels.changes)
        self.index.put(trial)
        self._out.append(EndTrial(trial=trial))
        self._learn(trial)
        if len(changes := self.index.levels.changes) > known_changes:
            again = tuple(t.number for t in unfairly_judged(self.index, self.study))
            self._out.append(NoteMachineChange(change=changes[-1], again=again))

    def _learn(self, trial: Trial) -> None:
        self._scorer.learn(trial)
        self._phases.learn(trial)

    # ---- decisions

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
            self._continue()
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
        """Whether the job would end before a trial that starts now."""
        return self._left_s is not None and self._left_s <= max(self.index.usual_s, self._longest_s)

    def _rest_in_time(self) -> None:
        """Finish the study before its job ends, if all finalists had the minimum number of final
        rounds; otherwise pause it."""
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

    def _continue(self) -> None:
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
        """Whether a trial cannot be run, for example because the runner has fewer ranks than before.
        Then it is ended as INFEASIBLE, or as CANCELLED if an attempt of it ran."""
        if refusal := self._admission.refusal(trial):
            status = TrialStatus.CANCELLED if trial.attempts else TrialStatus.INFEASIBLE
            self._end_trial(replace(trial, status=status, reason=refusal))
        return bool(refusal)

    def _may_start(self, trial: Trial) -> bool:
        """Whether enough ranks are free, and the trial's reference is not running."""
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
        """End the study with the results so far. `why`: reason of an early end, else empty;
        `stop_reason`: why nothing is left to do."""
        for number in self._waiting:
            self._end_trial(replace(self.trials[number], status=TrialStatus.CANCELLED, reason=why))
        self._waiting = []
        self.stop_reason = why or stop_reason or self.stop_reason
        self._out.append(self._ending.ended(self.phase, self.stop_reason, why, cancelled=cancelled))
        self.phase = StudyPhase.ENDED
