"""Decides the winner of a study and its speedup: from the final rounds that count, else from the
first measurements.

    tied       a config whose reward differs from the leader's by less than the margin of the noise between runs
    default    the baseline. If the leader is tied with it, the baseline wins, because chance explains the difference
    too noisy  if the runs of the baseline disagree (`too_noisy`), it wins and no speedup is given, unless all runs of a config are faster by far more than that
    interval   95% interval of the speedup: from the noise between runs, widened because the best of several configs was selected

Without finals the speedup is that of one measurement each, at the slowest speed that is consistent
with the machine's levels; the interval extends to the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from autotune.reward import (
    MachineLevels,
    RunNoise,
    by_reward,
    known_noise_scale,
    tokens_per_s,
    within_run_variance,
)
from autotune.spec import ParallelConfig, Study, Trial
from autotune.spec.texts.as_text import notes_of
from autotune.study.controller.finals.finalists import (
    cannot_run,
    confirmed_by,
    contenders,
    failed_in_finals,
    first_measurements,
    noise_of,
    participants,
    slope_of,
    total_of,
)
from autotune.study.controller.finals.machine_changes import changes_in_words, since_search_in_words
from autotune.study.controller.finals.rounds import (
    baseline_of,
    counted_rounds,
    ended_finals,
    joined,
    measured_finals,
    rounds_of,
)
from autotune.study.controller.finals.too_noisy import TooNoisy, too_noisy


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The winner of a study and its speedup."""

    best: Trial | None
    """the trial in which the winning config was first measured; after finals, with the measurement
    and reward of the finals"""
    baseline: Trial | None
    """the same for the baseline; None if it could not be measured"""
    speedup: float | None
    """tokens/s of the winner divided by those of the baseline; None without a baseline"""
    speedup_low: float | None = None
    """lower end of its 95% interval; None without a speedup"""
    speedup_high: float | None = None
    """its upper end"""
    tied_with: tuple[int, ...] = ()
    """numbers of trials whose configs are statistically tied with the winner"""
    rounds: int = 0
    """number of final rounds of the winner that count"""
    confirmed: tuple[Trial, ...] = ()
    """all configs that were re-measured, best reward first, with the finals' measurements and
    rewards"""
    notes: tuple[str, ...] = ()
    """remarks for users about the result"""
    too_noisy: TooNoisy | None = None
    """set if the machine is too noisy for a result"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Tests whether two trials of a ranking are tied."""

    noise: RunNoise
    rivals: int
    """number of configs among which the leader was selected"""
    slope: float
    """derivative of a reward with respect to ln tokens/s"""
    rounds: Mapping[int, int] = field(default_factory=dict)
    """by trial number, the final rounds that count for it and the baseline; empty: each config was
    measured once"""
    joined: Mapping[int, int] = field(default_factory=dict)
    """by trial number, the round in which it joined the finals"""
    unknown: Mapping[int, float] = field(default_factory=dict)
    """by trial number, how much faster it may be than assumed, in ln tokens/s, because it is unknown
    when exactly the machine changed"""

    def margin(self, one: Trial, other: Trial | None) -> float:
        """Half-width of the 95% interval of their difference in ln tokens/s."""
        measured = [
            t.measurement for t in (one, other) if t is not None and t.measurement is not None
        ]
        within = sum(map(within_run_variance, measured))
        return self.noise.half_width(self._rounds(one, other), configs=self.rivals, within=within)

    def _rounds(self, one: Trial, other: Trial | None) -> float:
        """Effective number of rounds of the difference: the harmonic mean of both, where the baseline
        has the rounds of the other config. Half of that for configs that joined in different rounds,
        because they are compared with different runs of the baseline."""
        known = [t.number for t in (one, other) if t is not None and t.number in self.rounds]
        mean = len(known) / math.fsum(1 / max(1, self.rounds[n]) for n in known) if known else 1.0
        return mean / len({self.joined[n] for n in known}) if known else mean

    def are_tied(self, leader: Trial, other: Trial) -> bool:
        """Whether the difference in reward is within the margin of noise."""
        if any(self.rounds.get(t.number) == 0 for t in (leader, other)):
            return True  # the machine changed in all of its rounds
        margin = self.margin(leader, other) + self.unknown.get(other.number, 0.0)
        return abs(total_of(leader) - total_of(other)) <= self.slope * margin


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Race:
    """The candidates of a study with their measurements."""

    trials: Sequence[Trial]
    study: Study
    levels: MachineLevels
    baseline: Trial | None
    """first measurement of the baseline"""
    default: Trial | None
    """the baseline with the measurement of its finals, if it ran in any"""
    alive: Sequence[ParallelConfig]
    """configs that ran side by side in finals; empty without finals"""
    ranked: Sequence[Trial]
    """candidates, best reward first"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Leader:
    """The winning trial with remarks."""

    best: Trial
    notes: Sequence[str] = ()
    too_noisy: TooNoisy | None = None
    """set if no speedup is given because of noise"""
    clear: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """on a noisy machine: by trial number, (lowest, highest) speedup of configs whose gain exceeds
    the noise"""


def decide(
    trials: Sequence[Trial], study: Study, who: Sequence[ParallelConfig] | None = None
) -> Winner:
    """Decide the winner from the final rounds that count, else from the first measurements. `who`:
    configs in the finals (default: `participants`)."""
    finals, levels = ended_finals(trials), MachineLevels(trials)
    failed, baseline = failed_in_finals(finals), baseline_of(trials)
    alive = [c for c in (participants(trials, study) if who is None else who) if c not in failed]
    alive, not_run = _raced(alive, finals, baseline)
    confirmed = confirmed_by(trials, study, alive) if alive else []
    default = next(
        (t for t in confirmed if baseline is not None and t.config == baseline.config), baseline
    )
    notes = [
        *(f"{config} failed when it was re-measured" for config in failed),
        *(f"{config} was not re-measured before the end" for config in not_run),
        *(f"{t.config} could not be re-measured: {t.reason}" for t in cannot_run(finals)),
        *changes_in_words(levels, trials, default),
    ]
    if default is not None and default is not baseline:
        notes += since_search_in_words(levels, trials, default)
    ranked = confirmed or [t for t in contenders(trials, study) if t.config not in failed]
    if not ranked:
        return Winner(best=None, baseline=baseline, speedup=None, notes=tuple(notes))
    race = _Race(trials=trials, study=study, levels=levels, baseline=baseline, default=default, alive=alive, ranked=ranked)  # fmt: skip
    others = [t for t in ranked if t is not default]
    run = {t.number: rounds_of(t.config, alive, finals, baseline) for t in others if alive}
    comparison = _by_finals(race, finals, run) if alive else _by_search(race)
    leader = _leader(race, comparison)
    best = leader.best
    # `run` has no entry for the baseline: as winner it gets the rounds of the config that it is
    # compared with, or the most that any other config ran
    rounds = run.get(best.number, run.get(ranked[0].number, max(run.values(), default=0)))
    winner = Winner(
        best=best,
        baseline=default,
        speedup=None,
        tied_with=tuple(_tied(race, leader, comparison)),
        rounds=rounds,
        confirmed=tuple(sorted(confirmed, key=lambda t: (t.config != best.config, by_reward(t)))),
        notes=(*notes, *leader.notes, *_rests_on(race, leader, rounds)),
        too_noisy=leader.too_noisy,
    )
    if leader.too_noisy is not None:
        return winner
    return _with_speedup(winner, race, leader, comparison)


def _by_finals(race: _Race, finals: Sequence[Trial], run: Mapping[int, int]) -> _Comparison:
    """The comparison of configs that ran side by side in finals. `run`: number of rounds by trial
    number."""
    alive, baseline = race.alive, race.baseline
    others = [t for t in race.ranked if t is not race.default]
    late = {t.number: joined(t.config, finals, baseline) for t in others}
    return _Comparison(
        noise=noise_of(race.trials, alive, max(late[n] + run[n] for n in run)),
        rounds={t.number: counted_rounds(t.config, alive, finals, baseline) for t in others},
        joined=late,
        rivals=len(race.ranked) - 1,
        slope=slope_of(race.study),
    )


def _by_search(race: _Race) -> _Comparison:
    """The comparison of configs that were measured once, in the search."""
    return _Comparison(
        noise=RunNoise.of(t.measurement for t in race.ranked[:2] if t.measurement),
        rivals=len(race.ranked) - 1,
        slope=slope_of(race.study),
        unknown={t.number: race.levels.at(t.number).width for t in race.ranked},
    )


def _leader(race: _Race, comparison: _Comparison) -> _Leader:
    """The winner: the best config that is significantly faster than the baseline, else the
    baseline."""
    ranked, default = race.ranked, race.default
    noisy = too_noisy(race.trials, race.baseline)
    if noisy is not None and default is not None:
        return _leader_in_noise(noisy, race, default)
    best = ranked[0]
    is_beside = bool(race.alive) and default in ranked and best is not default
    if default is None or not is_beside or not comparison.are_tied(best, default):
        return _Leader(best=best)
    # a config with fewer runs may lead by chance and be tied with the baseline, while others are
    # significantly faster than it
    ahead = ranked[: ranked.index(default)]
    if significant := next((t for t in ahead if not comparison.are_tied(t, default)), None):
        return _Leader(best=significant)
    note = "no config tried is faster than the baseline by more than the noise between runs"
    return _Leader(best=default, notes=(note,))


def _leader_in_noise(noisy: TooNoisy, race: _Race, default: Trial) -> _Leader:
    """The winner on a noisy machine: the best config whose gain exceeds the noise, else the
    baseline."""
    clear = _clear_of(noisy, race.ranked, default, race.trials)
    best = next((t for t in race.ranked if t.number in clear), None)
    if best is None:
        return _Leader(best=default, notes=noisy.notes(), too_noisy=noisy, clear=clear)
    return _Leader(best=best, notes=(noisy.note_beside(clear[best.number]),), clear=clear)


def _tied(race: _Race, leader: _Leader, comparison: _Comparison) -> Iterator[int]:
    """Numbers of trials whose configs are tied with the winner. On a noisy machine, all configs whose
    gain exceeds the noise are tied."""
    in_noise = leader.too_noisy is not None or bool(leader.clear)
    for t in race.ranked:
        is_tied = t.number in leader.clear if in_noise else comparison.are_tied(leader.best, t)
        if t is not leader.best and is_tied:
            yield t.number


def _is_of_search(race: _Race, rounds: int) -> bool:
    """Whether the speedup is that of the search, because the baseline did not run in the finals."""
    return rounds > 0 and race.baseline is not None and race.default is race.baseline


def _rests_on(race: _Race, leader: _Leader, rounds: int) -> tuple[str, ...]:
    """Notes about weak evidence for the speedup."""
    known = {t.config for t in (*race.ranked, race.default) if t is not None}
    scales = (known_noise_scale(t.measurement) for t in race.trials)
    is_clear, is_goodput = leader.too_noisy is None, race.study.objective.metric == "goodput"
    return notes_of(
        (
            is_clear and not rounds and known != {leader.best.config},
            "no final round finished, so the winner and the speedup rest on one measurement of each config",
        ),
        (
            is_clear and _is_of_search(race, rounds),
            "the baseline was not re-measured, so the speedup rests on one measurement of each config",
        ),
        (
            is_goodput and all(scale is None for scale in scales),
            "no trial measured the gradient noise scale, so larger batches were assumed to learn no more per step",
        ),
    )


def _with_speedup(winner: Winner, race: _Race, leader: _Leader, comparison: _Comparison) -> Winner:
    """The winner with its speedup and the 95% interval."""
    measured = leader.best
    if _is_of_search(race, winner.rounds):
        first = first_measurements(race.trials, race.study)
        measured = next(t for t in first if t.config == measured.config)
        unknown = {measured.number: race.levels.at(measured.number).width}
        comparison = replace(comparison, rounds={}, unknown=unknown)
    speedup, low, high = _speedup(measured, race.default, comparison)
    if speedup is not None and leader.best.number in leader.clear:
        least, most = leader.clear[leader.best.number]
        low, high = min(speedup, least), max(speedup, most)
    return replace(winner, speedup=speedup, speedup_low=low, speedup_high=high)


def _clear_of(
    noisy: TooNoisy, ranked: Sequence[Trial], default: Trial, trials: Sequence[Trial]
) -> dict[int, tuple[float, float]]:
    """By number of trials ranked above the baseline: (lowest, highest) speedup of the config, if its
    gain exceeds the noise."""
    ahead = ranked[: ranked.index(default)] if default in ranked else ranked
    ranges = {t.number: noisy.range_of_gain(t.config, trials) for t in ahead if t is not default}
    return {number: gain for number, gain in ranges.items() if gain is not None}


def _raced(
    alive: Sequence[ParallelConfig], finals: Sequence[Trial], baseline: Trial | None
) -> tuple[list[ParallelConfig], list[ParallelConfig]]:
    """(configs that ran side by side in finals, configs that did not run before the finals ended).
    Both are empty if only one config ran, or the baseline should have run but did not."""
    ran = [c for c in alive if measured_finals(c, finals)]
    is_race = len(ran) > 1 and (
        baseline is None or baseline.config in ran or baseline.config not in alive
    )
    return (ran, [c for c in alive if c not in ran]) if is_race else ([], [])


def _speedup(
    best: Trial, default: Trial | None, comparison: _Comparison
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Speedup over the baseline with the ends of its 95% interval; three times None without a
    baseline. After finals, the speedup is that of the same rounds, as stored in the reward."""
    if default is None:
        return None, None, None
    if best.config == default.config:
        return 1.0, 1.0, 1.0
    ratio = best.reward.parts.get("tokens_per_s_ratio") if best.reward is not None else None
    speedup = ratio or tokens_per_s(best) / tokens_per_s(default)
    spread = math.exp(comparison.margin(best, default))
    return (
        speedup,
        speedup / spread,
        speedup * spread * math.exp(comparison.unknown.get(best.number, 0.0)),
    )
