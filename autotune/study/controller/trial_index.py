"""All trials of a study with running counts and the best so far, so that a study of 10,000 trials decides as fast as one of 10."""

from __future__ import annotations

import math

from autotune.reward import by_reward, competes
from autotune.spec import MeasureSpec, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.budget import Reserve
from autotune.study.controller.repeated_failure import SAME_FAILURES, repeated_failure


class TrialIndex:
    """All trials by number; a trial is put again whenever it changed."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.trials: dict[int, Trial] = {}
        self.asked = 0
        """that the searcher asked for and that were not cancelled or refused"""
        self.refused = 0
        """that the searcher asked for and that cannot be run"""
        self.failed = 0
        """of any purpose"""
        self.baseline: Trial | None = None
        """first measurement of the default config"""
        self._best: Trial | None = None
        self._best_stopped: Trial | None = None
        self._runs = 0
        self._seconds = 0.0
        self._gpu_seconds = 0.0
        self._step_seconds = 0.0
        self._gpu_step_seconds = 0.0
        self._searched = 0
        self._search_seconds = 0.0

    def put(self, trial: Trial) -> None:
        """Stores the trial in its present state."""
        before = self.trials.get(trial.number)
        if before is not None:
            self._count(before, -1)
        self._count(trial, 1)
        self.trials[trial.number] = trial
        if trial.is_measured:
            self._learn(trial)

    @property
    def best(self) -> Trial | None:
        """The best first measurement: the first of `finals.contenders`."""
        return self._best or self._best_stopped

    @property
    def measured_gpu_s(self) -> float:
        """Rank-seconds of the measurements, by the clocks that measured them."""
        return self._gpu_seconds

    @property
    def trial_s(self) -> float:
        """Mean seconds of what the searcher asked for and was measured (before that: of all that was), by the clocks that measured it: a restart finds the
        same."""
        return self._search_seconds / self._searched if self._searched else self._seconds / max(1, self._runs)

    @property
    def purposes(self) -> set[TrialPurpose]:
        """What there were trials for, cancelled ones aside."""
        return {t.purpose for t in self.trials.values() if t.status is not TrialStatus.CANCELLED}

    def listed(self) -> list[Trial]:
        """By number."""
        return [self.trials[number] for number in sorted(self.trials)]

    def repeated_failure(self) -> str:
        """Why no config is going to run, in words; empty while one may. Costs nothing once a trial was measured."""
        return "" if self._runs or self.failed < SAME_FAILURES else repeated_failure(self.trials.values())

    def reserve(self, measure: MeasureSpec) -> Reserve:
        """What one more trial and the finals are expected to take, at the mean of the trials so far."""
        if self._runs < 2 or measure.finalists == 0:
            return Reserve()
        who = min(measure.finalists + (self.baseline is not None), self._runs)
        runs = measure.final_rounds * who + 1
        more_steps = who * max(0, measure.stability_steps - measure.max_steps)
        return Reserve(
            wall_s=(runs * self._seconds + more_steps * self._step_seconds) / self._runs,
            gpu_s=(runs * self._gpu_seconds + more_steps * self._gpu_step_seconds) / self._runs,
        )

    def _count(self, trial: Trial, sign: int) -> None:
        self.failed += sign * (trial.status is TrialStatus.FAILED)
        if trial.purpose is TrialPurpose.SEARCH and trial.status is not TrialStatus.CANCELLED:
            refused = trial.status is TrialStatus.INFEASIBLE
            self.refused += sign * refused
            self.asked += sign * (not refused)

    def _learn(self, trial: Trial) -> None:
        if trial.measurement is not None:
            seconds = trial.measurement.setup_s + math.fsum(trial.measurement.step_times_s)
            self._runs += 1
            self._seconds += seconds
            self._gpu_seconds += seconds * trial.config.world_size
            if trial.purpose is TrialPurpose.SEARCH:
                self._searched += 1
                self._search_seconds += seconds
            self._step_seconds += trial.measurement.step_time_s
            self._gpu_step_seconds += trial.measurement.step_time_s * trial.config.world_size
        if trial.purpose is TrialPurpose.FINAL or trial.reward is None or not competes(trial, self._study):
            return
        if trial.purpose is TrialPurpose.BASELINE:
            self.baseline = self.baseline or trial
        if trial.status is TrialStatus.COMPLETED:
            self._best = _better(trial, self._best)
        else:
            self._best_stopped = _better(trial, self._best_stopped)


def _better(trial: Trial, best: Trial | None) -> Trial:
    return trial if best is None else min(trial, best, key=by_reward)
