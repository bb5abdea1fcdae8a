"""Machine level: the factor by which all configs run faster or slower than at the start of the
study, estimated from repeated runs of the baseline.

    y_k      ln speed (of the median step) of run k of the baseline, relative to its first run
    phase    consecutive runs that differ only by the noise between runs; its level L is their mean y, minus that of the first phase
    gap      trials between the last run of one phase and the first run of the next: the machine changed before one of them, or after the last

The baseline is re-measured during the search. A run leaves its phase if it differs from the phase's
mean by more than the 99% interval of the noise between runs (`RunNoise`: a prior of 2%, updated by
the runs within phases). A single such run may have been disturbed. Only two in a row that agree are
a change.

When the machine changed within a gap is unknown. All positions have the same prior probability,
which is updated with the predictions of the trials in the gap:

    P(change before trial j) ~ prod_{i<j} f((ln t_i + L_a - ln p_i) / s_i) * prod_{i>=j} f((ln t_i + L_b - ln p_i) / s_i)

t_i: median step time, p_i: its prediction, s_i: standard deviation of the prediction, f: Student's
t density, whose heavy tails tolerate wrong predictions. A trial in a gap gets the range of all
levels with a probability above 5%.

A single deviating run ends a gap too, because the disturbance may have begun before it. There, the
prior probability that only the run itself was disturbed is `ALONE`.

With a single run of the baseline, or runs that agree, all levels are 0. The levels depend only on
the trials and their numbers, which are the order in which they began.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.reward.run_noise import CHANGE_CONFIDENCE, RunNoise, within_run_variance
from autotune.reward.student_t import t_quantile
from autotune.reward.total import DIVERGED_CEILING
from autotune.spec import Measurement, Reward, Trial, TrialPurpose

POSSIBLE = 0.05
"""minimum probability of a level to count as possible for a trial in a gap"""
ALONE = 0.97
"""prior probability that a disturbance of a single baseline run affected no other trial"""
PREDICTION_FREEDOM = 4.0
"""degrees of freedom of Student's t for prediction errors"""
INTERVAL_SDS = 1.645
"""standard deviations from a prediction to the lower end of its 90% interval"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """Range of possible machine levels in a trial: ln of the speed relative to the first phase."""

    slow: float = 0.0
    """the lowest"""
    fast: float = 0.0
    """the highest"""

    @property
    def is_known(self) -> bool:
        """Whether only one level is possible."""
        return self.slow == self.fast

    @property
    def width(self) -> float:
        """ln of the ratio between the fastest and the slowest possible speed."""
        return self.fast - self.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A period in which the machine did not change."""

    level: float
    """L: mean ln speed of its runs, relative to the first phase"""
    runs: tuple[int, ...]
    """numbers of the baseline trials in it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChange:
    """A change of the machine's speed between two phases."""

    before: Phase
    after: Phase

    @property
    def speedup(self) -> float:
        """Ratio of the speeds after and before; below 1 the machine became slower."""
        return math.exp(self.after.level - self.before.level)


class MachineLevels:
    """The phases of a study's search, and the machine level in each of its trials."""

    def __init__(
        self, trials: Iterable[Trial] = (), *, earlier: MachineLevels | None = None
    ) -> None:
        """`trials`: of one study, in any order. Final measurements are ignored, because they are
        compared with the baseline of their own round. `earlier`: levels of a part of these trials,
        to reuse their statistics."""
        measured = sorted(
            (t for t in trials if t.is_measured and t.purpose is not TrialPurpose.FINAL),
            key=lambda t: t.number,
        )
        runs = [t for t in measured if t.purpose is TrialPurpose.BASELINE]
        others = [t for t in measured if t.purpose is not TrialPurpose.BASELINE]
        known: Mapping[int, _Run] = earlier._runs if earlier is not None else {}
        self._runs: dict[int, _Run] = {
            t.number: known.get(t.number) or _Run.of(t.measurement)
            for t in runs
            if t.measurement is not None
        }
        phases, deviating = _phases(self._runs) if runs else ([], [])
        self.phases = tuple(phases)
        self._starts = [phase.runs[0] for phase in self.phases]
        self.odd = frozenset(run for _, after in deviating for run in after.runs)
        """numbers of the baseline runs that are in no phase"""
        self._gaps: dict[int, LevelRange] = {}
        for before, after in deviating:
            self._gaps |= _levels_in_gap(before, after, others, unchanged=ALONE)
        for before, after in zip(self.phases, self.phases[1:], strict=False):
            self._gaps |= _levels_in_gap(before, after, others)

    @property
    def changes(self) -> tuple[MachineChange, ...]:
        """All changes, in chronological order."""
        return tuple(
            MachineChange(before=a, after=b)
            for a, b in zip(self.phases, self.phases[1:], strict=False)
        )

    @property
    def is_uneven(self) -> bool:
        """Whether any trial may have run at a level other than the first."""
        return len(self.phases) > 1 or any(level != LevelRange() for level in self._gaps.values())

    @property
    def now(self) -> float:
        """The current level; 0 before the first baseline run."""
        return self.phases[-1].level if self.phases else 0.0

    @property
    def last_run(self) -> int:
        """Number of the last baseline run in a phase; -1 without one."""
        return self.phases[-1].runs[-1] if self.phases else -1

    def at(self, number: int) -> LevelRange:
        """The possible levels in the trial with this number."""
        if number in self._gaps or not self.phases:
            return self._gaps.get(number, LevelRange())
        phase = self.phases[max(0, bisect_right(self._starts, number) - 1)]
        return LevelRange(slow=phase.level, fast=phase.level)

    def seen(self, trial: Trial, stability_weight: float) -> Trial:
        """The trial with times and reward converted to the first level. If several levels are
        possible, the fastest machine is assumed, which makes the config look slowest, so that no
        claim depends on an uncertain level."""
        return at_level(trial, self.at(trial.number).fast, stability_weight)

    def reward(self, trial: Trial, stability_weight: float) -> Reward | None:
        """The reward of `seen`, which is the lowest possible one."""
        return _reward_at(trial, self.at(trial.number).fast, stability_weight)

    def best_reward(self, trial: Trial, stability_weight: float) -> Reward | None:
        """The highest possible reward at the first level."""
        return _reward_at(trial, self.at(trial.number).slow, stability_weight)


def at_first_level(trials: Sequence[Trial], stability_weight: float) -> list[Trial]:
    """All trials of a study, converted to the machine's first level, except final measurements."""
    levels = MachineLevels(trials)
    if not levels.is_uneven:
        return list(trials)
    return [levels.seen(trial, stability_weight) for trial in trials]


def at_level(trial: Trial, level: float, stability_weight: float) -> Trial:
    """Convert a trial measured at this level to level 0. Final measurements are unchanged."""
    if not level or trial.measurement is None or trial.purpose is TrialPurpose.FINAL:
        return trial
    measurement = slowed(trial.measurement, math.exp(level))
    return replace(
        trial, measurement=measurement, reward=_reward_at(trial, level, stability_weight)
    )


def _reward_at(trial: Trial, level: float, stability_weight: float) -> Reward | None:
    if not level or trial.reward is None:
        return trial.reward
    return moved(trial.reward, -level, stability_weight)


def slowed(measurement: Measurement, factor: float) -> Measurement:
    """The measurement with all step times multiplied by the factor."""
    return replace(
        measurement,
        step_times_s=tuple(factor * t for t in measurement.step_times_s),
        breakdown_s={name: factor * t for name, t in measurement.breakdown_s.items()},
        time_resolution_s=factor * measurement.time_resolution_s,
    )


def moved(reward: Reward, log_speed: float, stability_weight: float) -> Reward:
    """The reward after a change of ln speed by `log_speed`. A diverged trial's reward does not
    change."""
    if reward.total <= DIVERGED_CEILING:
        return reward
    terms = {"tokens_per_s_ratio": math.exp(log_speed), "cost_ratio": math.exp(-log_speed)}
    return replace(
        reward,
        total=max(reward.total + (1.0 - stability_weight) * log_speed, DIVERGED_CEILING),
        throughput=reward.throughput + log_speed,
        parts={name: value * terms.get(name, 1.0) for name, value in reward.parts.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Statistics of a baseline run."""

    y: float
    """ln of its median tokens per second"""
    within: float
    """variance of the mean from its steps (`within_run_variance`)"""

    @classmethod
    def of(cls, measurement: Measurement) -> _Run:
        return cls(
            y=math.log(measurement.median_tokens_per_s), within=within_run_variance(measurement)
        )


def _phases(runs: Mapping[int, _Run]) -> tuple[list[Phase], list[tuple[Phase, Phase]]]:
    """Split the baseline's runs, ordered by number, into phases. Also returns the runs in no phase,
    each as (the phase before it, a phase of that run alone)."""
    first, *rest = runs
    groups = [[first]]
    deviating: dict[int, list[int]] = {}
    last_deviating: int | None = None
    noise = _PhaseNoise(runs[first])
    for number in rest:
        run = runs[number]
        if noise.explains(run.y - noise.mean, len(groups[-1])):
            groups[-1].append(number)
            noise.add(run)
            last_deviating = None
        elif last_deviating is not None and noise.explains(run.y - runs[last_deviating].y, 1):
            deviating.pop(last_deviating)
            groups.append([last_deviating, number])
            noise.begin(runs[last_deviating])
            noise.add(run)
            last_deviating = None
        else:
            deviating[number] = list(groups[-1])
            last_deviating = number
    origin = _mean([runs[k].y for k in groups[0]])

    def phase(numbers: Sequence[int]) -> Phase:
        return Phase(level=_mean([runs[k].y for k in numbers]) - origin, runs=tuple(numbers))

    alone = [(phase(before), phase([number])) for number, before in deviating.items()]
    return [phase(numbers) for numbers in groups], alone


class _PhaseNoise:
    """Running estimate of the noise between runs of the same phase (Welford 1962)."""

    def __init__(self, first: _Run) -> None:
        self.mean, self._count = first.y, 1
        """mean y and number of runs of the current phase"""
        self._within = [first.within]
        """`within` of all runs, sorted"""
        self._squares, self._freedom = 0.0, 0

    def begin(self, run: _Run) -> None:
        """Begin a new phase with this run."""
        insort(self._within, run.within)
        self.mean, self._count = run.y, 1

    def add(self, run: _Run) -> None:
        """Add this run to the current phase."""
        insort(self._within, run.within)
        self._count += 1
        delta = run.y - self.mean
        self.mean += delta / self._count
        self._squares += delta * (run.y - self.mean)
        self._freedom += 1

    def explains(self, difference: float, runs: int) -> bool:
        """Whether noise explains the difference in y between one run and the mean of `runs`
        others."""
        middle = len(self._within) // 2
        typical = (self._within[middle] + self._within[~middle]) / 2
        noise = RunNoise.of_typical(typical, self._squares, self._freedom)
        sd = math.sqrt(noise.variance * (1 + 1 / runs))
        return abs(difference) <= t_quantile(noise.freedom, 0.5 + CHANGE_CONFIDENCE / 2) * sd


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _levels_in_gap(
    before: Phase, after: Phase, trials: Sequence[Trial], unchanged: float | None = None
) -> dict[int, LevelRange]:
    """The possible levels of the trials between two phases, by trial number. `unchanged`: prior
    probability that the machine changed only after the last of them; None for a uniform prior."""
    inside = [t for t in trials if before.runs[-1] < t.number < after.runs[0]]
    if not inside:
        return {}
    early = np.array([_log_likelihood(t, before.level) for t in inside])
    late = np.array([_log_likelihood(t, after.level) for t in inside])
    # log_p[j]: trials before j are still at the first level, those from j on are at the second
    log_p = np.concatenate([[0.0], np.cumsum(early)]) + np.concatenate(
        [np.cumsum(late[::-1])[::-1], [0.0]]
    )
    if unchanged is not None:
        log_p += np.log([(1 - unchanged) / len(inside)] * len(inside) + [unchanged])
    p: NDArray[np.float64] = np.exp(log_p - log_p.max())
    changed = np.cumsum(p)[:-1] / p.sum()
    return {
        t.number: _possible_levels(before.level, after.level, float(probability))
        for t, probability in zip(inside, changed, strict=True)
    }


def _possible_levels(early: float, late: float, changed: float) -> LevelRange:
    """The range of levels with a probability above `POSSIBLE`. `changed`: probability of `late`."""
    levels = [early] if 1 - changed > POSSIBLE else []
    if changed > POSSIBLE:
        levels.append(late)
    return LevelRange(slow=min(levels), fast=max(levels))


def _log_likelihood(trial: Trial, level: float) -> float:
    """Log likelihood of a trial's step time at this machine level, up to a constant; 0 without a
    prediction."""
    error = prediction_error(trial, level)
    if error is None:
        return 0.0
    return -(PREDICTION_FREEDOM + 1) / 2 * math.log1p(error**2 / PREDICTION_FREEDOM)


def prediction_error(trial: Trial, level: float) -> float | None:
    """Error of a trial's prediction if the machine was at this level: ln of measured divided by
    predicted step time, in standard deviations of prediction and run. None without a prediction."""
    if trial.estimate is None or trial.measurement is None:
        return None
    # only the lower end is used: possible stalls may widen the interval upward
    low = float(trial.estimate.step_time_low_s)
    predicted, measured = float(trial.estimate.step_time_s), trial.measurement.step_time_s
    if not 0 < low <= predicted < math.inf or not measured > 0:
        return None
    noise = RunNoise().variance + within_run_variance(trial.measurement)
    return (math.log(measured / predicted) + level) / math.hypot(
        math.log(predicted / low) / INTERVAL_SDS, math.sqrt(noise)
    )
