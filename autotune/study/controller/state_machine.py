"""The controller: what a study does next. A pure machine: events in, commands out; no clock, no I/O, no randomness of its own.

    baseline -> search -> finals -> ended

It owns the status of every trial, the ranks in use, the budget, retries, deadlines, pause, stop and cancel. It is rebuilt from the
trials of the store: what was told is told again in the same order, so the searcher goes on with the same next config, and a trial
whose attempt was cut off by the end of its controller gets another attempt.

Laws, checked by a state machine test over any order of events: never more ranks than the capacity, never more trials than the budget;
a trial becomes terminal once and stays so; every trial that was asked is told exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotune.ports import AttemptId, TrialRequest
from autotune.reward import competes
from autotune.spec import (
    Estimate,
    Failure,
    FailureKind,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.study.controller.attempts import MAX_ATTEMPTS, MAX_LOST, Attempt, Attempts
from autotune.study.controller.budget import Spent, everything_is_over, search_is_over
from autotune.study.controller.commands import (
    CANCELLED_ON_REQUEST,
    PAUSED_ON_REQUEST,
    STOPPED_ON_REQUEST,
    AttemptAdopted,
    AttemptEnded,
    AttemptQueued,
    AttemptStarted,
    CancelAsked,
    CancelAttempt,
    CloseAttempt,
    Command,
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
    StepsReported,
    StopAsked,
    StudyPhase,
    Tick,
)
from autotune.study.controller.finals import longer, next_final, outcome, participants, whole
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.stop_rule import not_worth_it
from autotune.study.controller.trial_index import TrialIndex

if TYPE_CHECKING:
    from autotune.search import Searcher

CUT_OFF = Failure(kind=FailureKind.WORKER_LOST, message="the controller of the study ended while this attempt ran")
SILENT = "the runner did not say that it ended"


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
        predict: Callable[[ParallelConfig], Estimate | None] = lambda _: None,
        refuse: Callable[[ParallelConfig], str] = lambda _: "",
        past: Sequence[Trial] = (),
        elapsed_s: float = 0.0,
        gpu_s: float | None = None,
        stop_reason: str = "",
        references: Mapping[int, ParallelConfig] = MappingProxyType({}),
        fp32_losses: Mapping[int, tuple[float, ...]] = MappingProxyType({}),
    ) -> None:
        """`capacity`: ranks of the runner. `baseline`: the default config (None: there is none to beat). `refuse`: why a config cannot be run
        at all, e.g. by this trainer; empty when it can. `past`: the trials of the store, terminal ones in the order in which
        they ended. `elapsed_s`, `gpu_s`, `stop_reason`: as of the last checkpoint (`gpu_s` None: there is none, go by what was measured).
        `references`: fp32 configs by global batch, to be measured for their
        losses before anything but the baseline is tried at that batch in another precision. `fp32_losses`: losses by tokens per step that are
        known already."""
        self.study_id = study_id
        self.study = study
        self.searcher = searcher
        self.attempts = Attempts(capacity)
        self.book = TrialIndex(study)
        self.phase = StudyPhase.BASELINE
        self.stop_reason = stop_reason
        self._baseline = baseline
        self._predict = predict
        self._refuse = refuse
        self._judge = Scorer(study, fp32_losses)
        self._references = dict(references)
        """those that were not asked for yet"""
        self._now_s: float | None = None
        self._elapsed_s = elapsed_s
        self._past_gpu_s = 0.0
        self._lost: dict[int, int] = {}
        self._waiting: list[int] = []
        self._cut_off: list[int] = []
        self._adopted: set[AttemptId] = set()
        self._quiet = ""
        self._resting: StudyStatus | None = None
        self._rest_reason = ""
        self._out: list[Command] = []
        self._restore(past)
        self._past_gpu_s = self.book.measured_gpu_s if gpu_s is None else gpu_s

    def handle(self, event: Event) -> list[Command]:
        """Takes in one event; what is to be done about it, in order."""
        match event:
            case Tick():
                self._pass_time(event.now_s)
            case AttemptAdopted() if event.id in self.cut_off:
                self._adopted.add(event.id)
            case AttemptEnded():
                self._end_attempt(event)
            case AttemptQueued() if event.id in self.attempts.live:
                if self.attempts.queue(event.id, self._now_s or 0.0):
                    self._out.append(NoteQueued(number=event.id[1], reason=event.reason))
            case AttemptStarted() if event.id in self.attempts.live:
                self._out.append(NoteStarted(number=event.id[1], attempt=event.id[2]))
            case StepsReported() if event.id in self.attempts.live:
                self._out.append(KeepSteps(steps=event))
            case PauseAsked():
                self._rest(StudyStatus.PAUSED, PAUSED_ON_REQUEST)
            case ResumeAsked() if self._resting is StudyStatus.PAUSED and self._rest_reason == PAUSED_ON_REQUEST:
                self._resting = None
            case StopAsked():
                self._rest(StudyStatus.COMPLETED, STOPPED_ON_REQUEST)
            case CancelAsked():
                self._rest(StudyStatus.CANCELLED, CANCELLED_ON_REQUEST)
            case InterruptAsked():
                self._rest(StudyStatus.PAUSED, event.reason)
            case _:
                pass
        if self.phase is not StudyPhase.ENDED and self._now_s is not None:
            self._advance()
        out, self._out = self._out, []
        return out

    @property
    def cut_off(self) -> tuple[AttemptId, ...]:
        """Attempts that ran when an earlier controller ended, until the first `Tick`: those that nobody adopts are launched again."""
        return tuple((self.study_id, number, self.trials[number].attempts) for number in self._cut_off)

    @property
    def elapsed_s(self) -> float:
        """Seconds that the study has been running, without pauses."""
        return self._elapsed_s

    @property
    def trials(self) -> Mapping[int, Trial]:
        """All trials by number."""
        return self.book.trials

    @property
    def best(self) -> Trial | None:
        """The best measured so far."""
        return self.book.best

    @property
    def spent(self) -> Spent:
        """What of the budget is used up."""
        book, gpu_s = self.book, self._past_gpu_s + self.attempts.gpu_s(self._now_s or 0.0)
        return Spent(trials=book.asked, failed=book.failed, refused=book.refused, wall_s=self._elapsed_s, gpu_s=gpu_s)

    def late(self, event: AttemptEnded) -> Trial | None:
        """What a late report says of its trial; None when that trial is not over, so that the report must not touch it."""
        trial = self.trials.get(event.id[1])
        if trial is None or not trial.status.is_terminal:
            return None
        return trial if event.cancelled else self._judge.ended(trial, event)

    # ---- what happened

    def _restore(self, past: Sequence[Trial]) -> None:
        for trial in past:
            self.book.put(trial)
            if trial.status.is_terminal:
                self._learn(trial)
        for trial in sorted(past, key=lambda t: t.number):
            if not trial.status.is_terminal:
                if trial.purpose is TrialPurpose.SEARCH:
                    self.searcher.tell([trial])  # pending: not to be asked again
                (self._cut_off if trial.status is TrialStatus.RUNNING else self._waiting).append(trial.number)
            if trial.purpose is TrialPurpose.REFERENCE and trial.status is not TrialStatus.CANCELLED:
                self._references.pop(trial.config.global_batch_size, None)
        purposes = {t.purpose for t in past}
        if TrialPurpose.FINAL in purposes:
            self.phase = StudyPhase.FINALS
        elif TrialPurpose.SEARCH in purposes:
            self.phase = StudyPhase.SEARCH

    def _pass_time(self, now_s: float) -> None:
        if self._now_s is None:
            self._now_s = now_s
            for attempt in self.cut_off:
                if attempt in self._adopted:
                    self.attempts.begin(attempt, self.trials[attempt[1]].config.world_size, now_s, self.study.measure)
                else:
                    self._retry(attempt[1], CUT_OFF)
            self._cut_off = []
        self._elapsed_s += max(0.0, now_s - self._now_s)
        self._now_s = max(self._now_s, now_s)

    def _end_attempt(self, event: AttemptEnded) -> None:
        attempt = self.attempts.end(event.id, self._now_s or 0.0)
        if attempt is None:
            self._out.append(KeepLate(event=event))
            return
        trial = self.trials[attempt.number]
        if attempt.cancelled and (event.cancelled or attempt.overdue):
            self._end_cancelled(attempt)
        elif event.cancelled:
            self._retry(
                trial.number, Failure(kind=FailureKind.WORKER_LOST, message="the runner ended the attempt unasked")
            )
        elif event.failure is not None and event.failure.kind.is_retried:
            self._retry(trial.number, event.failure)
        else:
            self._end_trial(self._judge.ended(trial, event))

    def _end_cancelled(self, attempt: Attempt) -> None:
        trial = self.trials[attempt.number]
        if attempt.overdue:
            failure = Failure(kind=FailureKind.TIMEOUT, message=attempt.cancelled)
            self._end_trial(replace(trial, status=TrialStatus.FAILED, failure=failure))
        else:
            self._end_trial(replace(trial, status=TrialStatus.CANCELLED, reason=attempt.cancelled))

    def _retry(self, number: int, failure: Failure) -> None:
        trial = self.trials[number]
        lost = self._lost[number] = self._lost.get(number, 0) + (failure is not CUT_OFF)
        if self._kills:
            self._end_trial(replace(trial, status=TrialStatus.CANCELLED, reason=self._rest_reason))
        elif lost > MAX_LOST or trial.attempts >= MAX_ATTEMPTS:
            self._end_trial(replace(trial, status=TrialStatus.FAILED, failure=failure))
        else:
            self._out.append(CloseAttempt(number=number, attempt=trial.attempts, failure=failure))
            self._waiting.insert(0, number)

    def _end_trial(self, trial: Trial) -> None:
        self.book.put(trial)
        self._out.append(EndTrial(trial=trial))
        self._learn(trial)

    def _learn(self, trial: Trial) -> None:
        self._judge.learn(trial)
        self._quiet = ""
        if trial.purpose is not TrialPurpose.FINAL and competes(trial, self.study):
            self.searcher.tell([trial])

    def _rest(self, status: StudyStatus, reason: str) -> None:
        order = (None, StudyStatus.PAUSED, StudyStatus.COMPLETED, StudyStatus.CANCELLED)
        if order.index(status) >= order.index(self._resting):
            self._resting, self._rest_reason = status, reason

    @property
    def _kills(self) -> bool:
        """Whether running trials are not waited for."""
        return self._resting is StudyStatus.CANCELLED or (
            self._resting is StudyStatus.PAUSED and self._rest_reason != PAUSED_ON_REQUEST
        )

    # ---- what to do next

    def _advance(self) -> None:
        now_s = self._now_s or 0.0
        for attempt in self.attempts.late(now_s):
            if attempt.cancelled:
                self.attempts.give_up(attempt)
                self._end_cancelled(replace(attempt, cancelled=f"{attempt.cancelled}; {SILENT}"))
            else:
                self._cancel(
                    attempt, "it took longer than a trial may take, and its runner did not end it", overdue=True
                )
        if self._kills:
            self._cancel_all(self._rest_reason)
        elif over := everything_is_over(self.spent, self.study.budget):
            self.stop_reason = self.stop_reason or over
            self._cancel_all(over)
            self._rest(StudyStatus.COMPLETED, over)
        if self._resting is None:
            self._go_on()
        elif not self.attempts.live:
            self._come_to_rest()

    def _cancel_all(self, why: str) -> None:
        for attempt in self.attempts.live.values():
            self._cancel(attempt, why)

    def _cancel(self, attempt: Attempt, why: str, *, overdue: bool = False) -> None:
        if self.attempts.ask_end(attempt, why, self._now_s or 0.0, overdue=overdue):
            self._out.append(CancelAttempt(id=attempt.id))

    def _go_on(self) -> None:
        steps = {
            StudyPhase.BASELINE: self._measure_baseline,
            StudyPhase.SEARCH: self._search,
            StudyPhase.FINALS: self._measure_again,
        }
        while self.phase is not StudyPhase.ENDED:
            while self._waiting and self._may_start(self.trials[self._waiting[0]]):
                self._start(self._waiting.pop(0))
            if self._waiting:
                if not self.attempts.live:
                    self._finish("ranks of the runner are still taken by attempts that never ended")
                return
            if not steps[self.phase]():
                return

    def _measure_baseline(self) -> bool:
        if self.attempts.live:
            return False
        known = self.book.purposes
        if self._baseline is not None and TrialPurpose.BASELINE not in known:
            self._new(self._baseline, TrialPurpose.BASELINE, "the default config, which everything is compared with")
            return True
        if self.book.baseline is not None and self._new_reference(self.book.baseline.config):
            return True
        if self.book.baseline is not None:
            message = "the baseline is measured"
        else:
            message = "there is no measured baseline: rewards are relative to the first config that is measured"
        self._enter(StudyPhase.SEARCH, message)
        return True

    def _search(self) -> bool:
        if len(self.attempts.live) >= max(1, self.study.budget.parallel_trials):
            return False
        reason = (
            search_is_over(self.spent, self.study.budget, self.book.reserve(self.study.measure))
            or self._quiet
            or not_worth_it(self.searcher, self.book, self.study.budget)
        )
        config = None if reason else next(iter(self.searcher.ask(1)), None)
        if config is not None:
            self._new_reference(config)
            self._new(config, TrialPurpose.SEARCH, self.searcher.reason(config))
            return True
        self._quiet = reason = reason or self.searcher.nothing_left()
        if self.attempts.live:
            return False
        self.stop_reason = reason
        self._enter(StudyPhase.FINALS, reason)
        return True

    def _measure_again(self) -> bool:
        if self.attempts.live:
            return False
        trials, measure = self.book.listed(), self.study.measure
        finals = [t for t in trials if t.purpose is TrialPurpose.FINAL]
        upcoming = next_final(participants(trials, self.study), finals, measure.final_rounds)
        if upcoming is None:
            self._finish("")
            return False
        r, config = upcoming
        self._new(config, TrialPurpose.FINAL, f"measured again: round {r + 1} of {measure.final_rounds}")
        return True

    # ---- how it is done

    def _new(self, config: ParallelConfig, purpose: TrialPurpose, reason: str) -> None:
        trial = Trial(
            config=config,
            number=len(self.trials),
            study=self.study_id,
            seed=self.study.seed,
            purpose=purpose,
            estimate=self._predict(config),
            reason=reason,
        )
        self.book.put(trial)
        self._out.append(KeepTrial(trial=trial))
        refusal = self._refuse(config) or self._judge.refusal(trial, self.attempts.capacity)
        if refusal:
            self._end_trial(replace(trial, status=TrialStatus.INFEASIBLE, reason=refusal))
        else:
            self._waiting.append(trial.number)

    def _new_reference(self, config: ParallelConfig) -> bool:
        """Asks for the fp32 losses that this config's will be held against, where they are not known."""
        batch, baseline = config.global_batch_size, self.book.baseline
        known = batch * self.study.workload.seq_len in self._judge.fp32_losses
        if known or config.precision == "fp32" or batch not in self._references or self._refuse(config):
            return False
        if baseline is not None and baseline.measurement is not None and not baseline.measurement.losses:
            return False  # this trainer does not tell its losses
        reason = f"in fp32: the reference of what the loss should look like at a global batch of {batch}"
        self._new(self._references.pop(batch), TrialPurpose.REFERENCE, reason)
        return True

    def _may_start(self, trial: Trial) -> bool:
        """Whether there are ranks for it, and its reference is there."""
        running = (self.trials[attempt.number] for attempt in self.attempts.live.values())
        batch = trial.config.global_batch_size
        awaited = any(t.purpose is TrialPurpose.REFERENCE and t.config.global_batch_size == batch for t in running)
        return trial.config.world_size <= self.attempts.free and not awaited

    def _start(self, number: int) -> None:
        trial = replace(self.trials[number], status=TrialStatus.RUNNING, attempts=self.trials[number].attempts + 1)
        self.book.put(trial)
        study = self.study
        is_reference = trial.purpose is TrialPurpose.REFERENCE
        is_last = trial.purpose is TrialPurpose.FINAL and self._is_last_round(trial.config)
        request = TrialRequest(
            study=self.study_id,
            number=number,
            attempt=trial.attempts,
            workload=study.workload,
            config=trial.config,
            measure=whole(study.measure) if is_reference else longer(study.measure) if is_last else study.measure,
            seed=trial.seed,
            trainer=study.trainer,
            trainer_options=study.trainer_options,
            data=study.data,
            profile=is_last,
            beat_step_time_s=self._judge.time_to_beat(trial, self.best)
            if trial.purpose is TrialPurpose.SEARCH
            else None,
            repeat=self._repeat(trial),
        )
        self.attempts.begin(request.id, trial.config.world_size, self._now_s or 0.0, study.measure)
        self._out.append(StartAttempt(request=request))

    def _repeat(self, trial: Trial) -> int:
        """How often its config was measured before: only the finals measure again."""
        if trial.purpose is not TrialPurpose.FINAL:
            return 0
        return sum(t.is_measured and t.config == trial.config for t in self.trials.values())

    def _is_last_round(self, config: ParallelConfig) -> bool:
        finals = [t for t in self.trials.values() if t.purpose is TrialPurpose.FINAL and t.config == config]
        return sum(t.is_measured for t in finals) >= self.study.measure.final_rounds - 1

    def _enter(self, phase: StudyPhase, message: str) -> None:
        self.phase = phase
        self._out.append(EnterPhase(phase=phase, message=message))

    def _come_to_rest(self) -> None:
        if self._resting is StudyStatus.PAUSED:
            outcome = self._outcome()
            self.phase = StudyPhase.ENDED
            self._out.append(EndStudy(status=StudyStatus.PAUSED, message=self._rest_reason, **outcome))
        else:
            self._finish(self._rest_reason, cancelled=self._resting is StudyStatus.CANCELLED)

    def _finish(self, why: str, *, cancelled: bool = False) -> None:
        """Ends the study with what is known; `why` is empty when it ran its course."""
        for number in self._waiting:
            self._end_trial(replace(self.trials[number], status=TrialStatus.CANCELLED, reason=why))
        self._waiting = []
        self.stop_reason = why or self.stop_reason
        outcome = self._outcome()
        if cancelled:
            status, message = StudyStatus.CANCELLED, why
        elif outcome["best"] is None:
            status = StudyStatus.CANCELLED if why == STOPPED_ON_REQUEST else StudyStatus.FAILED
            message = f"no config could be measured: {self._judge.tally()}" if status is StudyStatus.FAILED else why
            refusals = Counter(t.reason for t in self.trials.values() if t.status is TrialStatus.INFEASIBLE)
            if status is StudyStatus.FAILED and refusals:
                (reason, count), *_ = refusals.most_common(1)
                message += f"; {refusals.total()} could not be run at all, {count} of them because {reason}"
        else:
            status, message = StudyStatus.COMPLETED, self.stop_reason
        self.phase = StudyPhase.ENDED
        self._out.append(EndStudy(status=status, message=message, **outcome))

    def _outcome(self) -> dict[str, Any]:
        return outcome(self.book.listed(), self.study, phase=self.phase, stop_reason=self.stop_reason)
