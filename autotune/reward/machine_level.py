"""The level of a machine: by which factor all configs are faster or slower than they were when the
study began.

    y_k      ln speed (of the median step) of run k of the baseline, relative to its first run
    phase    runs in a row that the noise between runs explains; its level L is the mean of their y, less that of the first phase
    gap      trials between the last run of one phase and the first run of the next: the machine changed before one of them, or after the last

The baseline is re-measured during the search. A run leaves its phase when it is off the phase's
mean by more than the 99% interval of the noise between runs (`RunNoise`: the prior of 2% and the
runs within phases). One such run is no change: it may have been disturbed. A change is what two
runs in a row agree on.

In a gap nobody saw when the machine changed. Each place is as likely as the others beforehand; the
predictions of the trials there say more:

    P(change before trial j) ~ prod_{i<j} f((ln t_i + L_a - ln p_i) / s_i) * prod_{i>=j} f((ln t_i + L_b - ln p_i) / s_i)

A run that is off on its own ends a gap too: what disturbed it may have begun before it. The place
after the last trial, where only the run itself was disturbed, has the probability `ALONE`
beforehand there.

t_i: median step time, p_i: its prediction, s_i: standard deviation of the prediction, f: Student's
t density, whose tails forgive a wrong prediction. Levels that remain possible (more than 5%) are
all kept: a trial in a gap has the range of them.

With a single run of the baseline, or runs that agree, the level is 0 throughout and nothing
changes. All of this is a function of the trials and their numbers, the order in which they began.
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
"""probability above which a level is kept as possible for a trial in a gap"""
ALONE = 0.97
"""probability that what disturbed a single run of the baseline disturbed nothing else"""
PREDICTION_FREEDOM = 4.0
"""degrees of freedom of the errors of predictions"""
INTERVAL_SDS = 1.645
"""standard deviations between a prediction and the lower end of its 90% interval"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """The levels that the machine may have had in a trial: ln of its speed relative to the first
    phase."""

    slow: float = 0.0
    """the lowest"""
    fast: float = 0.0
    """the highest"""

    @property
    def is_known(self) -> bool:
        """Whether there is only one."""
        return self.slow == self.fast

    @property
    def width(self) -> float:
        """ln of the fastest over the slowest machine that is possible."""
        return self.fast - self.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A time in which the machine did not change."""

    level: float
    """L: mean ln speed of its runs relative to the first phase"""
    runs: tuple[int, ...]
    """numbers of the baseline's trials"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineChange:
    """From one phase to the next."""

    before: Phase
    after: Phase

    @property
    def speedup(self) -> float:
        """By how much the machine became faster; under 1: slower."""
        return math.exp(self.after.level - self.before.level)


class MachineLevels:
    """The phases of one study's search, and the level in each of its trials."""

    def __init__(
        self, trials: Iterable[Trial] = (), *, earlier: MachineLevels | None = None
    ) -> None:
        """`trials`: of one study, in any order; final measurements, which are held against the
        baseline of their own round, count for nothing. `earlier`: the levels of some of them, of
        which figures are taken over."""
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
        found, alone = _phases(self._runs) if runs else ([], [])
        self.phases = tuple(found)
        self._starts = [phase.runs[0] for phase in self.phases]
        self.odd = frozenset(run for _, after in alone for run in after.runs)
        """runs of the baseline that are in no phase"""
        self._gaps: dict[int, LevelRange] = {}
        for before, after in alone:
            self._gaps |= _gap(before, after, others, unchanged=ALONE)
        for before, after in zip(self.phases, self.phases[1:], strict=False):
            self._gaps |= _gap(before, after, others)

    @property
    def changes(self) -> tuple[MachineChange, ...]:
        """All changes, in order."""
        return tuple(
            MachineChange(before=a, after=b)
            for a, b in zip(self.phases, self.phases[1:], strict=False)
        )

    @property
    def is_uneven(self) -> bool:
        """Whether any trial may have run at another level than the first."""
        return len(self.phases) > 1 or any(level != LevelRange() for level in self._gaps.values())

    @property
    def now(self) -> float:
        """The present level."""
        return self.phases[-1].level if self.phases else 0.0

    @property
    def last_run(self) -> int:
        """Number of the last run of the baseline in a phase; -1 before the first."""
        return self.phases[-1].runs[-1] if self.phases else -1

    def at(self, number: int) -> LevelRange:
        """The level in the trial of this number."""
        if number in self._gaps or not self.phases:
            return self._gaps.get(number, LevelRange())
        phase = self.phases[max(0, bisect_right(self._starts, number) - 1)]
        return LevelRange(slow=phase.level, fast=phase.level)

    def seen(self, trial: Trial, stability_weight: float) -> Trial:
        """The trial as it would have come out at the first level. Where several levels are possible
        the fastest machine counts, which makes the config look slowest: no claim may rest on the
        others."""
        return at_level(trial, self.at(trial.number).fast, stability_weight)

    def reward(self, trial: Trial, stability_weight: float) -> Reward | None:
        """That of `seen`."""
        return _reward_at(trial, self.at(trial.number).fast, stability_weight)

    def best_reward(self, trial: Trial, stability_weight: float) -> Reward | None:
        """The same with the slowest machine that is possible."""
        return _reward_at(trial, self.at(trial.number).slow, stability_weight)


def at_first_level(trials: Sequence[Trial], stability_weight: float) -> list[Trial]:
    """All trials of a study as they would have come out at the machine's first level, but final
    measurements."""
    levels = MachineLevels(trials)
    return (
        [levels.seen(trial, stability_weight) for trial in trials]
        if levels.is_uneven
        else list(trials)
    )


def at_level(trial: Trial, level: float, stability_weight: float) -> Trial:
    """A trial that was measured at this level, as it would have come out at level 0. Final
    measurements are left as they are."""
    if not level or trial.measurement is None or trial.purpose is TrialPurpose.FINAL:
        return trial
    measurement = slowed(trial.measurement, math.exp(level))
    return replace(
        trial, measurement=measurement, reward=_reward_at(trial, level, stability_weight)
    )


def _reward_at(trial: Trial, level: float, stability_weight: float) -> Reward | None:
    return (
        moved(trial.reward, -level, stability_weight)
        if level and trial.reward is not None
        else trial.reward
    )


def slowed(measurement: Measurement, factor: float) -> Measurement:
    """The measurement with all times of its steps multiplied."""
    return replace(
        measurement,
        step_times_s=tuple(factor * t for t in measurement.step_times_s),
        breakdown_s={name: factor * t for name, t in measurement.breakdown_s.items()},
        time_resolution_s=factor * measurement.time_resolution_s,
    )


def moved(reward: Reward, log_speed: float, stability_weight: float) -> Reward:
    """The reward of a trial that is faster by this ln."""
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
    """What counts of a run of the baseline."""

    y: float
    """ln of its median tokens per second"""
    within: float
    """what its steps tell of the noise (`within_run_variance`)"""

    @classmethod
    def of(cls, measurement: Measurement) -> _Run:
        return cls(
            y=math.log(measurement.median_tokens_per_s), within=within_run_variance(measurement)
        )


def _phases(runs: Mapping[int, _Run]) -> tuple[list[Phase], list[tuple[Phase, Phase]]]:
    """The phases of the baseline's runs, by number in order; and the runs that are in none, each as
    a phase after the one that it followed."""
    first, *rest = runs
    found, odd = [[first]], list[int]()
    alone: dict[int, list[int]] = {}
    noise = _PhaseNoise(runs[first])
    for number in rest:
        run = runs[number]
        if noise.explains(run.y - noise.mean, len(found[-1])):
            found[-1].append(number)
            noise.add(run)
            odd = []
        elif odd and noise.explains(run.y - runs[odd[-1]].y, 1):
            alone.pop(odd[-1])
            found.append([odd[-1], number])
            noise.begin(runs[odd[-1]])
            noise.add(run)
            odd = []
        else:
            alone[number] = list(found[-1])
            odd.append(number)
    origin = _mean([runs[k].y for k in found[0]])

    def phase(numbers: Sequence[int]) -> Phase:
        return Phase(level=_mean([runs[k].y for k in numbers]) - origin, runs=tuple(numbers))

    return [phase(numbers) for numbers in found], [
        (phase(before), phase([n])) for n, before in alone.items()
    ]


class _PhaseNoise:
    """The noise between the runs of the same phase, added up run by run (Welford 1962)."""

    def __init__(self, first: _Run) -> None:
        self.mean, self._count = first.y, 1
        """mean y of the present phase, and its runs"""
        self._within = [first.within]
        """of all runs, in rising order"""
        self._squares, self._freedom = 0.0, 0

    def begin(self, run: _Run) -> None:
        """Another phase begins with this run."""
        insort(self._within, run.within)
        self.mean, self._count = run.y, 1

    def add(self, run: _Run) -> None:
        """The phase goes on with this run."""
        insort(self._within, run.within)
        self._count += 1
        delta = run.y - self.mean
        self.mean += delta / self._count
        self._squares += delta * (run.y - self.mean)
        self._freedom += 1

    def explains(self, difference: float, runs: int) -> bool:
        """Whether the noise between runs explains the difference of one run to the mean of so many
        others."""
        middle = len(self._within) // 2
        typical = (self._within[middle] + self._within[~middle]) / 2
        noise = RunNoise.of_typical(typical, self._squares, self._freedom)
        sd = math.sqrt(noise.variance * (1 + 1 / runs))
        return abs(difference) <= t_quantile(noise.freedom, 0.5 + CHANGE_CONFIDENCE / 2) * sd


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _gap(
    before: Phase, after: Phase, trials: Sequence[Trial], unchanged: float | None = None
) -> dict[int, LevelRange]:
    """The possible levels of the trials between two phases, by number. `unchanged`: probability
    beforehand that the machine changed after the last of them."""
    inside = [t for t in trials if before.runs[-1] < t.number < after.runs[0]]
    if not inside:
        return {}
    early = np.array([_log_likelihood(t, before.level) for t in inside])
    late = np.array([_log_likelihood(t, after.level) for t in inside])
    # place j: trials before j are still at the first level, those from j on are at the second
    places = np.concatenate([[0.0], np.cumsum(early)]) + np.concatenate(
        [np.cumsum(late[::-1])[::-1], [0.0]]
    )
    if unchanged is not None:
        places += np.log([(1 - unchanged) / len(inside)] * len(inside) + [unchanged])
    chance: NDArray[np.float64] = np.exp(places - places.max())
    changed = np.cumsum(chance)[:-1] / chance.sum()
    return {
        t.number: _range(before.level, after.level, float(p))
        for t, p in zip(inside, changed, strict=True)
    }


def _range(early: float, late: float, changed: float) -> LevelRange:
    """The levels that are possible where the machine has changed with this probability."""
    levels = [early] * (1 - changed > POSSIBLE) + [late] * (changed > POSSIBLE)
    return LevelRange(slow=min(levels), fast=max(levels))


def _log_likelihood(trial: Trial, level: float) -> float:
    """Of a trial's step time, had the machine been at this level; 0 where nothing was predicted."""
    error = prediction_error(trial, level)
    return (
        0.0
        if error is None
        else -(PREDICTION_FREEDOM + 1) / 2 * math.log1p(error**2 / PREDICTION_FREEDOM)
    )


def prediction_error(trial: Trial, level: float) -> float | None:
    """ln of measured over predicted step time, had the machine been at this level, in standard
    deviations of prediction and run; None where nothing was predicted."""
    if trial.estimate is None or trial.measurement is None:
        return None
    # a stall may widen the interval above the step time
    low = float(trial.estimate.step_time_low_s)
    predicted, measured = float(trial.estimate.step_time_s), trial.measurement.step_time_s
    if not 0 < low <= predicted < math.inf or not measured > 0:
        return None
    noise = RunNoise().variance + within_run_variance(trial.measurement)
    return (math.log(measured / predicted) + level) / math.hypot(
        math.log(predicted / low) / INTERVAL_SDS, math.sqrt(noise)
    )
