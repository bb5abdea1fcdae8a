"""The winner of a study, and by how much: by the final rounds that count, else by the first measurements.

    tied       a config whose reward cannot be told from the leader's: within the margin of the noise between runs
    default    where the leader is tied with the baseline, that wins: nothing is claimed that chance explains
    too noisy  where the baseline's own runs disagree (`too_noisy`), it stays, and no speedup is claimed, unless all runs of a config are faster by far more than that
    interval   of the speedup, 95%: the noise between runs, and that the best of several was picked

Without finals the claim rests on one measurement each, at the slowest figure that the machine's levels allow; its interval reaches up to the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """the trial in which the winning config was first measured; after finals with their measurement and reward"""
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
    """all configs that were re-measured, best reward first, with the finals' measurements and rewards"""
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
    """by trial, final rounds that count, which the baseline ran in too; empty: each was measured once"""
    joined: Mapping[int, int] = field(default_factory=dict)
    """by trial, the round in which it joined the finals"""
    unknown: Mapping[int, float] = field(default_factory=dict)
    """by trial, ln by which it may be faster than it counts, because nobody saw when the machine changed"""

    def margin(self, one: Trial, other: Trial | None) -> float:
        """Half-width of the interval of their difference in ln speed."""
        measured = [
            t.measurement for t in (one, other) if t is not None and t.measurement is not None
        ]
        within = sum(map(within_run_variance, measured))
        return self.noise.half_width(self._rounds(one, other), configs=self.rivals, within=within)

    def _rounds(self, one: Trial, other: Trial | None) -> float:
        """Rounds that the difference is worth: the harmonic mean of both, of the baseline the other's. Of configs that joined in different rounds half of
        that, since each is held against other runs of the baseline."""
        known = [t.number for t in (one, other) if t is not None and t.number in self.rounds]
        mean = len(known) / math.fsum(1 / max(1, self.rounds[n]) for n in known) if known else 1.0
        return mean / len({self.joined[n] for n in known}) if known else mean

    def are_tied(self, leader: Trial, other: Trial) -> bool:
        """Whether the other may be as good as the leader."""
        if any(self.rounds.get(t.number) == 0 for t in (leader, other)):
            return True  # the machine changed in all of its rounds
        margin = self.margin(leader, other) + self.unknown.get(other.number, 0.0)
        return abs(total_of(leader) - total_of(other)) <= self.slope * margin


def decide(
    trials: Sequence[Trial], study: Study, who: Sequence[ParallelConfig] | None = None
) -> Winner:
    """The winner by the final rounds that count, else by the first measurements. `who` took part in the finals (default: `participants`)."""
    finals, levels = ended_finals(trials), MachineLevels(trials)
    failed, baseline = failed_in_finals(finals), baseline_of(trials)
    alive = [c for c in (participants(trials, study) if who is None else who) if c not in failed]
    alive, not_run = _raced(alive, finals, baseline)
    is_raced = bool(alive)
    confirmed = confirmed_by(trials, study, alive) if is_raced else []
    default = next(
        (t for t in confirmed if baseline is not None and t.config == baseline.config), baseline
    )
    notes = [
        *(f"{config} failed when it was re-measured" for config in failed),
        *(f"{config} was not re-measured before the end" for config in not_run),
        *(f"{t.config} could not be re-measured: {t.reason}" for t in cannot_run(finals)),
        *changes_in_words(levels, trials, default),
        *(
            since_search_in_words(levels, trials, default)
            if default is not None and default is not baseline
            else ()
        ),
    ]
    ranked = confirmed or [t for t in contenders(trials, study) if t.config not in failed]
    if not ranked:
        return Winner(best=None, baseline=baseline, speedup=None, notes=tuple(notes))
    best, rivals, slope = ranked[0], len(ranked) - 1, slope_of(study)
    if is_raced:
        others = [t for t in ranked if t is not default]
        late = {t.number: joined(t.config, finals, baseline) for t in others}
        run = {t.number: rounds_of(t.config, alive, finals, baseline) for t in others}
        counted = {t.number: counted_rounds(t.config, alive, finals, baseline) for t in others}
        noise = noise_of(trials, alive, max(late[n] + run[n] for n in run))
        compared = _Comparison(noise=noise, rounds=counted, joined=late, rivals=rivals, slope=slope)
    else:
        noise = RunNoise.of(t.measurement for t in ranked[:2] if t.measurement)
        unknown = {t.number: levels.at(t.number).width for t in ranked}
        compared, run = _Comparison(noise=noise, rivals=rivals, slope=slope, unknown=unknown), {}
    noisy = too_noisy(trials, baseline)
    clear: dict[int, tuple[float, float]] = {}
    if noisy is not None and default is not None:
        clear = _clear_of(noisy, ranked, default, trials)
        best = next((t for t in ranked if t.number in clear), default)
        notes += noisy.notes() if best is default else [noisy.note_beside(clear[best.number])]
        noisy = noisy if best is default else None
    elif (
        is_raced and default in ranked and compared.are_tied(best, default) and best is not default
    ):
        # who was measured less often may lead by chance, and be tied with the baseline where others surely beat it
        ahead = ranked[: ranked.index(default)]
        best = next((t for t in ahead if not compared.are_tied(t, default)), default)
        if best is default:
            notes.append(
                "no config tried is faster than the baseline by more than the noise between runs"
            )
    tied = [t for t in ranked if t is not best and compared.are_tied(best, t)]
    if noisy is not None or clear:  # among those that are clear of the noise nothing is told apart
        tied = [t for t in ranked if t is not best and t.number in clear]
    # the baseline is in no row of its own: as winner it has the rounds of the one that it is compared with, or the most that any other ran beside it
    rounds = run.get(best.number, run.get(ranked[0].number, max(run.values(), default=0)))
    measured = best  # the trial of the best config that the speedup is of
    if noisy is None and not rounds:
        if {t.config for t in (*ranked, default) if t is not None} != {best.config}:
            notes.append(
                "no final round finished, so the winner and the speedup rest on one measurement of each config"
            )
    elif noisy is None and baseline is not None and default is baseline:
        notes.append(
            "the baseline was not re-measured, so the speedup rests on one measurement of each config"
        )
        measured = next(t for t in first_measurements(trials, study) if t.config == best.config)
        compared = replace(
            compared, rounds={}, unknown={measured.number: levels.at(measured.number).width}
        )
    if study.objective.metric == "goodput" and not any(
        known_noise_scale(t.measurement) is not None for t in trials
    ):
        notes.append(
            "no trial measured the gradient noise scale: larger batches were assumed to learn no more per step"
        )
    speedup, low, high = (
        _speedup(measured, default, compared) if noisy is None else (None, None, None)
    )
    if speedup is not None and best.number in clear:
        low, high = min(speedup, clear[best.number][0]), max(speedup, clear[best.number][1])
    return Winner(
        best=best,
        baseline=default,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        tied_with=tuple(t.number for t in tied),
        rounds=rounds,
        confirmed=tuple(sorted(confirmed, key=lambda t: (t.config != best.config, by_reward(t)))),
        notes=tuple(notes),
        too_noisy=noisy,
    )


def _clear_of(
    noisy: TooNoisy, ranked: Sequence[Trial], default: Trial, trials: Sequence[Trial]
) -> dict[int, tuple[float, float]]:
    """By trial that ranks above the baseline, the range of its config's gain, where that is clear of the noise."""
    ahead = ranked[: ranked.index(default)] if default in ranked else ranked
    ranges = {t.number: noisy.range_of_gain(t.config, trials) for t in ahead if t is not default}
    return {number: found for number, found in ranges.items() if found is not None}


def _raced(
    alive: Sequence[ParallelConfig], finals: Sequence[Trial], baseline: Trial | None
) -> tuple[list[ParallelConfig], list[ParallelConfig]]:
    """(configs that ran side by side, those whose turn had not come when the finals ended); none ran where it was one alone, or the baseline had no turn."""
    ran = [c for c in alive if measured_finals(c, finals)]
    is_race = len(ran) > 1 and (
        baseline is None or baseline.config in ran or baseline.config not in alive
    )
    return (ran, [c for c in alive if c not in ran]) if is_race else ([], [])


def _speedup(
    best: Trial, default: Trial | None, compared: _Comparison
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Tokens per second against the baseline's around the same time, which the reward holds: after the finals that of the same rounds; with the ends of its
    interval."""
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
