"""All trials of a study with running totals and the best so far, so that decisions in a study of
10,000 trials are as fast as in one of 10.

Trials are stored as they were measured; for comparisons they are corrected to the machine's first
level (`seen`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from autotune.reward import MachineLevels, by_reward, competes, counted_once
from autotune.spec import MeasureSpec, ParallelConfig, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.budget import Reserve
from autotune.study.controller.repeated_failure import SAME_FAILURES, repeated_failure

ASKED = (TrialPurpose.SEARCH, TrialPurpose.PROXY)
"""purposes of trials proposed by the searcher"""


class TrialIndex:
    """All trials by number. `put` a trial again whenever it changed."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.trials: dict[int, Trial] = {}
        self.asked = 0
        """number of trials proposed by the searcher, without CANCELLED and INFEASIBLE ones"""
        self.failed = 0
        """number of failed trials of any purpose"""
        self.baseline: Trial | None = None
        """first measurement of the baseline"""
        self.refused_baseline: Trial | None = None
        """the baseline if it cannot be run, with the reason; not a trial of the study"""
        self.levels = MachineLevels()
        """speed of the machine during each trial, relative to its first level"""
        self.measured: Counter[ParallelConfig] = Counter()
        """how often each config was measured, for any purpose"""
        self._best: Trial | None = None
        self._best_stopped: Trial | None = None
        self._runs = 0
        self._seconds = 0.0
        self._gpu_seconds = 0.0
        self._step_seconds = 0.0
        self._gpu_step_seconds = 0.0
        self._searched = 0
        self._search_seconds = 0.0
        self._baselines = 0
        self._baseline_seconds = 0.0

    def put(self, trial: Trial) -> None:
        """Store the trial in its current state."""
        before = self.trials.get(trial.number)
        if before is not None:
            self._count(before, -1)
        self._count(trial, 1)
        self.trials[trial.number] = trial
        if trial.is_measured and (before is None or not before.is_measured):
            self._learn(trial)

    def seen(self, trial: Trial) -> Trial:
        """The trial corrected to the machine's first level; unchanged if the machine did not
        change."""
        return self.levels.seen(trial, self._study.objective.stability_weight)

    def all_seen(self) -> Iterator[Trial]:
        """All trials corrected to the machine's first level, in the order in which they were added."""
        return map(self.seen, self.trials.values())

    @property
    def best(self) -> Trial | None:
        """The best first measurement, corrected to the machine's first level; None without one.
        Equals the first of `finalists.contenders`."""
        return self._best or self._best_stopped

    @property
    def measured_gpu_s(self) -> float:
        """Rank-seconds of all measurements, by the clocks of the trials."""
        return self._gpu_seconds

    @property
    def trial_s(self) -> float:
        """Mean time of the measured trials proposed by the searcher, s; before there is one, of any
        measured trial. By the clocks of the trials, so that it is the same after a restart."""
        return (
            self._search_seconds / self._searched
            if self._searched
            else self._seconds / max(1, self._runs)
        )

    @property
    def baseline_s(self) -> float:
        """Mean time of a run of the baseline, s; 0 before the first."""
        return self._baseline_seconds / max(1, self._baselines)

    @property
    def purposes(self) -> set[TrialPurpose]:
        """Purposes of all trials that were not cancelled."""
        return {t.purpose for t in self.trials.values() if t.status is not TrialStatus.CANCELLED}

    def listed(self) -> list[Trial]:
        """All trials, sorted by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    def repeated_failure(self) -> str:
        """Why no config of the program can run; empty if one may. Trivial once a trial was
        measured."""
        return (
            ""
            if self._runs or self.failed < SAME_FAILURES
            else repeated_failure(self.trials.values())
        )

    @property
    def usual_s(self) -> float:
        """Mean time of all measured trials, s; 0 before the first."""
        return self._seconds / self._runs if self._runs else 0.0

    def reserve(self, measure: MeasureSpec, racing: int = 0) -> Reserve:
        """Expected time and rank-seconds of one more trial and the finals, from the mean of the
        trials so far; 0 before two were measured. `racing`: number of configs that would race now,
        if known."""
        if self._runs < 2 or measure.finalists == 0:
            return Reserve()
        racers = max(racing, min(measure.finalists + (self.baseline is not None), self._runs))
        runs = measure.final_rounds * racers + 1
        more_steps = racers * max(0, measure.stability_steps - measure.max_steps)
        return Reserve(
            wall_s=(runs * self._seconds + more_steps * self._step_seconds) / self._runs,
            gpu_s=(runs * self._gpu_seconds + more_steps * self._gpu_step_seconds) / self._runs,
        )

    def _count(self, trial: Trial, sign: int) -> None:
        self.failed += sign * (trial.status is TrialStatus.FAILED)
        if trial.purpose in ASKED and trial.status not in (
            TrialStatus.CANCELLED,
            TrialStatus.INFEASIBLE,
        ):
            self.asked += sign

    def _learn(self, trial: Trial) -> None:
        if trial.measurement is not None:
            seconds = seconds_of(trial)
            self._runs += 1
            self._seconds += seconds
            self._gpu_seconds += seconds * trial.config.world_size
            if trial.purpose in ASKED:
                self._searched += 1
                self._search_seconds += seconds
            if trial.purpose is TrialPurpose.BASELINE:
                self._baselines += 1
                self._baseline_seconds += seconds
            self._step_seconds += trial.measurement.step_time_s
            self._gpu_step_seconds += trial.measurement.step_time_s * trial.config.world_size
        self.measured[trial.config] += 1
        if trial.purpose in (TrialPurpose.FINAL, TrialPurpose.PROXY):
            return
        is_baseline = trial.purpose is TrialPurpose.BASELINE
        is_repeat = is_baseline and self.baseline is not None
        if is_baseline:
            self.baseline = self.baseline or trial
        levels = self.levels
        if is_baseline or trial.number < levels.last_run:
            self.levels = MachineLevels(self.trials.values(), earlier=levels)
        has_moved = self.levels is not levels and (self.levels.is_uneven or levels.is_uneven)
        if has_moved or (self.measured[trial.config] > 1 and not is_repeat):
            self._best = self._best_stopped = None
            for each in counted_once(list(self.trials.values())):
                self._compare(each)
        elif not is_repeat:
            self._compare(trial)

    def _compare(self, trial: Trial) -> None:
        """Make the trial the best so far if it is."""
        is_completed = trial.status is TrialStatus.COMPLETED
        best = self._best if is_completed else self._best_stopped
        reward = self.levels.reward(trial, self._study.objective.stability_weight)
        if reward is None or not competes(trial, self._study):
            return
        if best is not None and (-reward.total, trial.number) > by_reward(best):
            return
        if is_completed:
            self._best = self.seen(trial)
        else:
            self._best_stopped = self.seen(trial)


def seconds_of(trial: Trial) -> float:
    """Time that a trial took for setup and steps, by its own clock, s; 0 without a measurement."""
    return (
        trial.measurement.setup_s + math.fsum(trial.measurement.step_times_s)
        if trial.measurement is not None
        else 0.0
    )
