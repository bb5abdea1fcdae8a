"""The winner of a study, and by how much: by the final rounds that count, else by the first
measurements.

    tied       a config whose reward cannot be told from the leader's: within the margin of the noise between runs
    default    where the leader is tied with the baseline, that wins: nothing is claimed that chance explains
    too noisy  where the baseline's own runs disagree (`too_noisy`), it stays, and no speedup is claimed, unless all runs of a config are faster by far more than that
    interval   of the speedup, 95%: the noise between runs, and that the best of several was picked

Without finals the claim rests on one measurement each, at the slowest figure that the machine's
levels allow; its interval reaches up to the fastest.
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
    """Who won, and by what."""

    best: Trial | None
    """the trial in which the winning config was first measured; after finals with their measurement
    and reward"""
    baseline: Trial | None
    """the same of the baseline; None when it could not be measured"""
    speedup: float | None
    """winner against baseline in tokens per second; None without a baseline"""
    speedup_low: float | None = None
    """lower end of its 95% interval; None without a speedup"""
    speedup_high: float | None = None
    """its upper end"""
    tied_with: tuple[int, ...] = ()
    """trials whose configs cannot be told from the winner"""
    rounds: int = 0
    """final rounds of the winner that count"""
    confirmed: tuple[Trial, ...] = ()
    """all configs that were re-measured, best reward first, with the finals' measurements and
    rewards"""
    notes: tuple[str, ...] = ()
    """what else must be said, in words"""
    too_noisy: TooNoisy | None = None
    """why nothing can be claimed on this machine"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """By what two trials of a ranking are told apart."""

    noise: RunNoise
    rivals: int
    """among which the leader was picked"""
    slope: float
    """by how much a reward moves with ln speed"""
    rounds: Mapping[int, int] = field(default_factory=dict)
    """by trial, final rounds that count, which the baseline ran in too; empty: each was measured
    once"""
    joined: Mapping[int, int] = field(default_factory=dict)
    """by trial, the round in which it joined the finals"""
    unknown: Mapping[int, float] = field(default_factory=dict)
    """by trial, ln by which it may be faster than it counts, because nobody saw when the machine
    changed"""

    def margin(self, one: Trial, other: Trial | None) -> float:
        """Half-width of the interval of their difference in ln speed."""
        measured = [
            t.measurement for t in (one, other) if t is not None and t.measurement is not None
        ]
        within = sum(map(within_run_variance, measured))
        return self.noise.half_width(self._rounds(one, other), configs=self.rivals, within=within)

    def _rounds(self, one: Trial, other: Trial | None) -> float:
        """Rounds that the difference is worth: the harmonic mean of both, of the baseline the
        other's. Of configs that joined in different rounds half of that, since each is held against
        other runs of the baseline."""
        known = [t.number for t in (one, other) if t is not None and t.number in self.rounds]
        mean = len(known) / math.fsum(1 / max(1, self.rounds[n]) for n in known) if known else 1.0
        return mean / len({self.joined[n] for n in known}) if known else mean

    def are_tied(self, leader: Trial, other: Trial) -> bool:
        """Whether the other may be as good as the leader."""
        if any(self.rounds.get(t.number) == 0 for t in (leader, other)):
            return True  # the machine changed in all of its rounds
        margin = self.margin(leader, other) + self.unknown.get(other.number, 0.0)
        return abs(total_of(leader) - total_of(other)) <= self.slope * margin


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Race:
    """Who may win a study, and what was measured of them."""

    trials: Sequence[Trial]
    study: Study
    levels: MachineLevels
    baseline: Trial | None
    """its first measurement"""
    default: Trial | None
    """the same with its finals, where it ran in any"""
    alive: Sequence[ParallelConfig]
    """configs that ran side by side in finals; none where there were no finals"""
    ranked: Sequence[Trial]
    """the best reward first"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Leader:
    """Who wins, and what is said of it."""

    best: Trial
    notes: Sequence[str] = ()
    too_noisy: TooNoisy | None = None
    """why nothing is claimed"""
    clear: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """by trial, the range of a gain that is clear of the noise of a noisy machine"""


def decide(
    trials: Sequence[Trial], study: Study, who: Sequence[ParallelConfig] | None = None
) -> Winner:
    """The winner by the final rounds that count, else by the first measurements. `who` took part in
    the finals (default: `participants`)."""
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
    compared = _by_finals(race, finals, run) if alive else _by_search(race)
    leader = _leader(race, compared)
    best = leader.best
    # the baseline is in no row of its own: as winner it has the rounds of the one that it is
    # compared with, or the most that any other ran beside it
    rounds = run.get(best.number, run.get(ranked[0].number, max(run.values(), default=0)))
    won = Winner(
        best=best,
        baseline=default,
        speedup=None,
        tied_with=tuple(_tied(race, leader, compared)),
        rounds=rounds,
        confirmed=tuple(sorted(confirmed, key=lambda t: (t.config != best.config, by_reward(t)))),
        notes=(*notes, *leader.notes, *_rests_on(race, leader, rounds)),
        too_noisy=leader.too_noisy,
    )
    return won if leader.too_noisy is not None else _with_speedup(won, race, leader, compared)


def _by_finals(race: _Race, finals: Sequence[Trial], run: Mapping[int, int]) -> _Comparison:
    """How configs that ran side by side are told apart. `run`: by trial, its rounds."""
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
    """How configs that were measured once are told apart."""
    return _Comparison(
        noise=RunNoise.of(t.measurement for t in race.ranked[:2] if t.measurement),
        rivals=len(race.ranked) - 1,
        slope=slope_of(race.study),
        unknown={t.number: race.levels.at(t.number).width for t in race.ranked},
    )


def _leader(race: _Race, compared: _Comparison) -> _Leader:
    """The leader of the ranking, or the baseline where nothing surely beats it."""
    ranked, default = race.ranked, race.default
    noisy = too_noisy(race.trials, race.baseline)
    if noisy is not None and default is not None:
        return _leader_in_noise(noisy, race, default)
    best = ranked[0]
    is_beside = bool(race.alive) and default in ranked and best is not default
    if default is None or not is_beside or not compared.are_tied(best, default):
        return _Leader(best=best)
    # who was measured less often may lead by chance, and be tied with the baseline where others
    # surely beat it
    ahead = ranked[: ranked.index(default)]
    if sure := next((t for t in ahead if not compared.are_tied(t, default)), None):
        return _Leader(best=sure)
    note = "no config tried is faster than the baseline by more than the noise between runs"
    return _Leader(best=default, notes=(note,))


def _leader_in_noise(noisy: TooNoisy, race: _Race, default: Trial) -> _Leader:
    """The best config that is clear of the noise, or the baseline, which stays."""
    clear = _clear_of(noisy, race.ranked, default, race.trials)
    best = next((t for t in race.ranked if t.number in clear), None)
    if best is None:
        return _Leader(best=default, notes=noisy.notes(), too_noisy=noisy, clear=clear)
    return _Leader(best=best, notes=(noisy.note_beside(clear[best.number]),), clear=clear)


def _tied(race: _Race, leader: _Leader, compared: _Comparison) -> Iterator[int]:
    """The trials whose configs cannot be told from the winner; among those that are clear of the
    noise nothing is told apart."""
    in_noise = leader.too_noisy is not None or bool(leader.clear)
    for t in race.ranked:
        is_tied = t.number in leader.clear if in_noise else compared.are_tied(leader.best, t)
        if t is not leader.best and is_tied:
            yield t.number


def _is_of_search(race: _Race, rounds: int) -> bool:
    """Whether the baseline was left out of the finals, so that a speedup is that of the search."""
    return rounds > 0 and race.baseline is not None and race.default is race.baseline


def _rests_on(race: _Race, leader: _Leader, rounds: int) -> tuple[str, ...]:
    """What a speedup rests on that is less than it might, in words."""
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


def _with_speedup(won: Winner, race: _Race, leader: _Leader, compared: _Comparison) -> Winner:
    """The winner with its speedup and the interval of it."""
    measured = leader.best
    if _is_of_search(race, won.rounds):
        first = first_measurements(race.trials, race.study)
        measured = next(t for t in first if t.config == measured.config)
        unknown = {measured.number: race.levels.at(measured.number).width}
        compared = replace(compared, rounds={}, unknown=unknown)
    speedup, low, high = _speedup(measured, race.default, compared)
    if speedup is not None and leader.best.number in leader.clear:
        least, most = leader.clear[leader.best.number]
        low, high = min(speedup, least), max(speedup, most)
    return replace(won, speedup=speedup, speedup_low=low, speedup_high=high)


def _clear_of(
    noisy: TooNoisy, ranked: Sequence[Trial], default: Trial, trials: Sequence[Trial]
) -> dict[int, tuple[float, float]]:
    """By trial that ranks above the baseline, the range of its config's gain, where that is clear
    of the noise."""
    ahead = ranked[: ranked.index(default)] if default in ranked else ranked
    ranges = {t.number: noisy.range_of_gain(t.config, trials) for t in ahead if t is not default}
    return {number: found for number, found in ranges.items() if found is not None}


def _raced(
    alive: Sequence[ParallelConfig], finals: Sequence[Trial], baseline: Trial | None
) -> tuple[list[ParallelConfig], list[ParallelConfig]]:
    """(configs that ran side by side, those whose turn had not come when the finals ended); none
    ran where it was one alone, or the baseline had no turn."""
    ran = [c for c in alive if measured_finals(c, finals)]
    is_race = len(ran) > 1 and (
        baseline is None or baseline.config in ran or baseline.config not in alive
    )
    return (ran, [c for c in alive if c not in ran]) if is_race else ([], [])


def _speedup(
    best: Trial, default: Trial | None, compared: _Comparison
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Tokens per second against the baseline's around the same time, which the reward holds: after
    the finals that of the same rounds; with the ends of its interval."""
    if default is None:
        return None, None, None
    if best.config == default.config:
        return 1.0, 1.0, 1.0
    ratio = best.reward.parts.get("tokens_per_s_ratio") if best.reward is not None else None
    speedup = ratio or tokens_per_s(best) / tokens_per_s(default)
    spread = math.exp(compared.margin(best, default))
    return (
        speedup,
        speedup / spread,
        speedup * spread * math.exp(compared.unknown.get(best.number, 0.0)),
    )
