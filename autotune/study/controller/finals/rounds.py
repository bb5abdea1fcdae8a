"""Selects the runs of the finals that count, paired with those of the baseline in the same rounds.

    a round counts for a config    if the config and the baseline finished it, neither run was disturbed by a burst, and the machine did not change during it

If no round counts for both, the undisturbed runs of each are used without pairing. If the machine
changed in all rounds, the result is a tie.

A config may join late, after the race of the first finalists (`finalists`). Its first run then
belongs to a later round, given by the number of rounds that the baseline had begun before. The
baseline runs first in the rounds of late contenders.

Rounds are leveled before they are pooled: all step times of a round are multiplied by the baseline's
median speed in it, divided by the geometric mean over the rounds that count. A change of the machine
between two rounds then makes no config look unsteady, and affects the mean of each equally.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.reward import (
    MachineLevels,
    RunNoise,
    at_first_level,
    slowed,
    steady_rounds,
    undisturbed,
)
from autotune.reward.run_noise import CHANGE_CONFIDENCE
from autotune.spec import Measurement, ParallelConfig, Trial, TrialPurpose


def baseline_of(trials: Sequence[Trial]) -> Trial | None:
    """The first measurement of the baseline; None if there is none."""
    return next((t for t in trials if t.purpose is TrialPurpose.BASELINE and t.is_measured), None)


def rounds_of(
    config: ParallelConfig,
    who: Sequence[ParallelConfig],
    finals: Sequence[Trial],
    baseline: Trial | None,
) -> int:
    """Number of rounds that both the config and the baseline finished; without a baseline in the
    race, the number that all configs finished."""
    if baseline is None or baseline.config not in who:
        return min(len(measured_finals(c, finals)) for c in (config, *who))
    theirs = len(measured_finals(baseline.config, finals)) - joined(config, finals, baseline)
    return max(0, min(len(measured_finals(config, finals)), theirs))


def joined(config: ParallelConfig, finals: Sequence[Trial], baseline: Trial | None) -> int:
    """The round (from 0) of a config's first final run."""
    first = min((t.number for t in finals if t.config == config), default=None)
    if baseline is None or config == baseline.config or first is None:
        return 0
    return max(0, sum(t.number < first for t in measured_finals(baseline.config, finals)) - 1)


def runs_beside(
    config: ParallelConfig,
    alive: Sequence[ParallelConfig],
    finals: Sequence[Trial],
    baseline: Trial | None,
    rounds: int | None = None,
) -> tuple[list[Measurement], list[Measurement]]:
    """The leveled runs of a config that count and the baseline's runs of the same rounds, within the
    first `rounds`. The latter are empty if the baseline is not in the race. If no round counts for
    both, the runs that count for each alone, not leveled."""
    late = joined(config, finals, baseline)
    count = rounds_of(config, alive, finals, baseline)
    count = count if rounds is None else max(0, min(count, rounds - late))
    runs = runs_of(config, finals, count)
    if baseline is None or baseline.config not in alive:
        return _kept(runs, undisturbed(runs)), []
    theirs = runs_of(baseline.config, finals, late + count)
    steady, theirs = steady_and_closed(theirs)[late:], theirs[late:]
    both = _both(runs, theirs, steady)
    if not any(both):  # a disturbed baseline does not determine the level of its round
        return _kept(runs, which_count(runs, steady)), _kept(theirs, which_count(theirs, steady))
    factors = _levels(theirs, both)
    level = [slowed(m, f) for m, f in zip(runs, factors, strict=True)]
    level_theirs = [slowed(m, f) for m, f in zip(theirs, factors, strict=True)]
    return _kept(level, both), _kept(level_theirs, both)


def counted_rounds(
    config: ParallelConfig,
    alive: Sequence[ParallelConfig],
    finals: Sequence[Trial],
    baseline: Trial | None,
) -> int:
    """Number of rounds that support a result about a config: those that count for it and the
    baseline, else the smaller number of undisturbed runs of the two in steady rounds. Without the
    baseline in the race, the number of its undisturbed runs."""
    late, count = joined(config, finals, baseline), rounds_of(config, alive, finals, baseline)
    runs = runs_of(config, finals, count)
    if baseline is None or baseline.config not in alive:
        return len(_kept(runs, undisturbed(runs)))
    theirs = runs_of(baseline.config, finals, late + count)
    steady, theirs = steady_and_closed(theirs)[late:], theirs[late:]
    alone = (sum(map(min, undisturbed(m), steady)) for m in (runs, theirs))
    return sum(_both(runs, theirs, steady)) or min(alone)


def _both(
    runs: Sequence[Measurement], theirs: Sequence[Measurement], steady: Sequence[bool]
) -> list[bool]:
    """Whether each round counts for both a config and the baseline, shape (rounds,)."""
    rounds = zip(undisturbed(runs), undisturbed(theirs), steady, strict=True)
    return [mine and other and is_steady for mine, other, is_steady in rounds]


def gained(default: ParallelConfig, trials: Sequence[Trial], rounds: int | None = None) -> float:
    """Change of the baseline's speed from the machine's first level to the finals (or their first
    `rounds`), in ln tokens/s; 0 without runs of both. Its runs in the search that belong to no phase
    of the machine are ignored."""
    numbers = {number for phase in MachineLevels(trials).phases for number in phase.runs}
    corrected = at_first_level(trials, stability_weight=0.0)  # the weight changes only rewards
    search = [t for t in corrected if t.config == default and t.number in numbers]
    finals = measured_finals(default, ended_finals(trials))[:rounds]
    steady = steady_and_closed([t.measurement for t in finals if t.measurement is not None])
    finals = [t for t, is_steady in zip(finals, steady, strict=True) if is_steady] or finals
    before, after = (
        [math.log(t.measurement.median_tokens_per_s) for t in runs if t.measurement is not None]
        for runs in (search, finals)
    )
    return (
        math.fsum(after) / len(after) - math.fsum(before) / len(before) if before and after else 0.0
    )


def at_start(default: Trial, trials: Sequence[Trial]) -> Trial:
    """The baseline with its final rounds pooled (`default`), corrected to the machine's first level:
    all figures of a study are relative to it."""
    if default.measurement is None:
        return default
    factor = math.exp(gained(default.config, trials))
    return replace(default, measurement=slowed(default.measurement, factor))


def steady_and_closed(default: Sequence[Measurement]) -> list[bool]:
    """`steady_rounds` of the baseline's runs, except that a last round which the baseline opened and
    did not close is steady only if its run agrees with those of steady rounds. Otherwise a burst
    during this run would make all other configs of the round look fast."""
    steady = steady_rounds(default)
    if len(default) % 2 and len(default) > 1:
        *speeds, last = (math.log(m.median_tokens_per_s) for m in default)
        others = [y for y, is_steady in zip(speeds, steady, strict=False) if is_steady]
        width = RunNoise.of(default).half_width(1, confidence=CHANGE_CONFIDENCE)
        steady[-1] = bool(others) and abs(last - math.fsum(others) / len(others)) <= width
    return steady


def _levels(default: Sequence[Measurement], counts: Sequence[bool]) -> list[float]:
    """Factor for the step times of each round that corrects them to the machine's mean speed in the
    rounds that count, shape (rounds,)."""
    speeds = [math.log(m.median_tokens_per_s) for m in default]
    mean = math.fsum(speed for speed, is_good in zip(speeds, counts, strict=True) if is_good) / sum(
        counts
    )
    return [math.exp(speed - mean) for speed in speeds]


def which_are_steady(
    who: Sequence[ParallelConfig], finals: Sequence[Trial], trials: Sequence[Trial], rounds: int
) -> list[bool]:
    """Whether each of the first `rounds` rounds is steady; True for all without the baseline in the
    race."""
    baseline = baseline_of(trials)
    known = (
        steady_and_closed(runs_of(baseline.config, finals, rounds))
        if baseline and baseline.config in who
        else []
    )
    return known + [True] * (rounds - len(known))


def which_count(runs: Sequence[Measurement], steady: Sequence[bool]) -> list[bool]:
    """Whether each run of a config counts: undisturbed in a steady round; if there is none, all
    undisturbed runs."""
    good = undisturbed(runs)
    both = [a and b for a, b in zip(good, steady, strict=False)]
    return both if any(both) else good


def runs_of(config: ParallelConfig, finals: Sequence[Trial], rounds: int) -> list[Measurement]:
    return [
        t.measurement for t in measured_finals(config, finals)[:rounds] if t.measurement is not None
    ]


def _kept(runs: Sequence[Measurement], good: Sequence[bool]) -> list[Measurement]:
    """The runs that are good; all if none is."""
    return [m for m, is_good in zip(runs, good, strict=True) if is_good] or list(runs)


def pooled_runs(measurements: Sequence[Measurement]) -> Measurement:
    """The longest run's measurement (the last of equals) with the steps of all runs, equally many of
    each. The k-th steps of all runs are adjacent, in alternating order of runs, so that a difference
    between runs, such as a busy machine in one of them, does not look like a trend."""
    steps = min(len(m.step_times_s) for m in measurements)
    kth = [[m.step_times_s[k] for m in measurements] for k in range(steps)]
    longest = max(reversed(measurements), key=lambda m: len(m.step_times_s))
    return replace(
        longest,
        step_times_s=tuple(
            t for k, times in enumerate(kth) for t in (times[::-1] if k % 2 else times)
        ),
        skipped_steps=round(sum(m.skipped_share for m in measurements) * steps),
    )


def ended_finals(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of the finals that have ended."""
    return [t for t in trials if t.purpose is TrialPurpose.FINAL and t.status.is_terminal]


def measured_finals(config: ParallelConfig, finals: Sequence[Trial]) -> list[Trial]:
    """The measured trials of this config among those of the finals."""
    return [t for t in finals if t.config == config and t.is_measured]
