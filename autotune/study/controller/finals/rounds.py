"""The runs of the finals that count: beside those of the baseline in the same rounds, without
rounds in which something else than the config moved them.

    a round counts for a config    when both finished it, neither run was disturbed by a burst, and the machine did not change in it

Where no round counts for both, each has its own undisturbed runs, as they are; nothing is claimed
where the machine changed in all of them.

A config may join late, when the first finalists have raced (`finals`). Its first run then belongs
to a later round: as many rounds after the first as the baseline had begun before it. The baseline
opens the rounds of late comers.

Rounds are leveled before they are pooled: all times of a round are multiplied by what the
baseline's median speed in it is above its mean over the rounds that count (of the logarithms). A
machine that changed between two rounds then makes no config look unsteady, and counts for the same
in the mean of each.
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
    """The baseline's first measurement."""
    return next((t for t in trials if t.purpose is TrialPurpose.BASELINE and t.is_measured), None)


def rounds_of(
    config: ParallelConfig,
    who: Sequence[ParallelConfig],
    finals: Sequence[Trial],
    baseline: Trial | None,
) -> int:
    """Rounds of a config that count: those that the baseline finished too; without a baseline in
    the race those that all finished."""
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
    """The runs of a config that count, and the baseline's of the same rounds, where it is in the
    race and any round counts for both; of the first `rounds`."""
    late = joined(config, finals, baseline)
    count = rounds_of(config, alive, finals, baseline)
    count = count if rounds is None else max(0, min(count, rounds - late))
    runs = runs_of(config, finals, count)
    if baseline is None or baseline.config not in alive:
        return _kept(runs, undisturbed(runs)), []
    theirs = runs_of(baseline.config, finals, late + count)
    steady, theirs = steady_and_closed(theirs)[late:], theirs[late:]
    both = _both(runs, theirs, steady)
    if not any(both):  # a baseline that was disturbed tells no level
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
    """Rounds on which a claim about a config may rest: those that count for both, else of each its
    undisturbed runs while the machine did not change. Without the baseline in the race, the
    undisturbed runs."""
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
    """Which rounds count for both."""
    found = zip(undisturbed(runs), undisturbed(theirs), steady, strict=True)
    return [mine and other and is_steady for mine, other, is_steady in found]


def gained(default: ParallelConfig, trials: Sequence[Trial], rounds: int | None = None) -> float:
    """By how much in ln speed the baseline became faster from the machine's first level to the
    finals, or their first `rounds`. Its runs in the search that are in none of the machine's phases
    count for nothing."""
    numbers = {number for phase in MachineLevels(trials).phases for number in phase.runs}
    seen = at_first_level(trials, stability_weight=0.0)  # which moves rewards, not speeds
    search = [t for t in seen if t.config == default and t.number in numbers]
    finals = measured_finals(default, ended_finals(trials))[:rounds]
    steady = steady_and_closed([t.measurement for t in finals if t.measurement is not None])
    finals = [t for t, is_steady in zip(finals, steady, strict=True) if is_steady] or finals
    before, after = (
        [math.log(t.measurement.median_tokens_per_s) for t in found if t.measurement is not None]
        for found in (search, finals)
    )
    return (
        math.fsum(after) / len(after) - math.fsum(before) / len(before) if before and after else 0.0
    )


def at_start(default: Trial, trials: Sequence[Trial]) -> Trial:
    """The baseline with its final rounds pooled, as it would have come out at the machine's first
    level: what all figures of a study are relative to."""
    if default.measurement is None:
        return default
    factor = math.exp(gained(default.config, trials))
    return replace(default, measurement=slowed(default.measurement, factor))


def steady_and_closed(default: Sequence[Measurement]) -> list[bool]:
    """`steady_rounds`, without a last round that the baseline opened and did not close, unless its
    run is like those of rounds that count: a burst that began before the run and ended after it
    makes all others of the round look fast."""
    steady = steady_rounds(default)
    if len(default) % 2 and len(default) > 1:
        *speeds, last = (math.log(m.median_tokens_per_s) for m in default)
        like = [y for y, is_steady in zip(speeds, steady, strict=False) if is_steady]
        width = RunNoise.of(default).half_width(1, confidence=CHANGE_CONFIDENCE)
        steady[-1] = bool(like) and abs(last - math.fsum(like) / len(like)) <= width
    return steady


def _levels(default: Sequence[Measurement], counts: Sequence[bool]) -> list[float]:
    """By what the times of each round are multiplied, as if the machine had been as fast in each as
    it was on average in those that count."""
    speeds = [math.log(m.median_tokens_per_s) for m in default]
    mean = math.fsum(speed for speed, is_good in zip(speeds, counts, strict=True) if is_good) / sum(
        counts
    )
    return [math.exp(speed - mean) for speed in speeds]


def which_are_steady(
    who: Sequence[ParallelConfig], finals: Sequence[Trial], trials: Sequence[Trial], rounds: int
) -> list[bool]:
    """Which of the first rounds the machine did not change in; all without the baseline."""
    baseline = baseline_of(trials)
    known = (
        steady_and_closed(runs_of(baseline.config, finals, rounds))
        if baseline and baseline.config in who
        else []
    )
    return known + [True] * (rounds - len(known))


def which_count(runs: Sequence[Measurement], steady: Sequence[bool]) -> list[bool]:
    """Which runs of a config count; where the machine changed in all rounds, those that are
    undisturbed."""
    good = undisturbed(runs)
    both = [a and b for a, b in zip(good, steady, strict=False)]
    return both if any(both) else good


def runs_of(config: ParallelConfig, finals: Sequence[Trial], rounds: int) -> list[Measurement]:
    return [
        t.measurement for t in measured_finals(config, finals)[:rounds] if t.measurement is not None
    ]


def _kept(runs: Sequence[Measurement], good: Sequence[bool]) -> list[Measurement]:
    """The runs of rounds that nothing disturbed; all where there is none."""
    return [m for m, is_good in zip(runs, good, strict=True) if is_good] or list(runs)


def pooled_runs(measurements: Sequence[Measurement]) -> Measurement:
    """The longest round's measurement (the last of these) with the steps of all rounds, equally
    many of each. The k-th steps of all rounds stand beside each other, to and fro: what differs
    between rounds, such as a machine that was busy in one, is no trend of the config."""
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
    return [t for t in trials if t.purpose is TrialPurpose.FINAL and t.status.is_terminal]


def measured_finals(config: ParallelConfig, finals: Sequence[Trial]) -> list[Trial]:
    return [t for t in finals if t.config == config and t.is_measured]
