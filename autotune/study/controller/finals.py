"""The finals: a race of the best configs and the baseline, measured again in turn, before a winner is named.

The best of many noisy measurements is on average too good (the winner's curse), and a machine drifts while a study runs. So the
claim does not rest on the search's own numbers: finalists and baseline alternate, every other round in the opposite order, which
cancels a linear drift, and each config is held against the baseline of the same rounds, with equally many steps of each.

    finalists   the best `MeasureSpec.finalists`, and all whose first measurement cannot be told from the best's
    a round     all that are still in the race; who is surely behind the leader drops out after `MeasureSpec.final_rounds` rounds
    the end     one is surely ahead of all others, or what the others may be ahead by is under `WORTH`, or `RACE` times the runs of
                `final_rounds` rounds of `finalists` and baseline are used up

"Surely" is the 95% interval of `autotune.reward.run_noise`. A config that fails when it is measured again cannot win. The last round may be longer
(`MeasureSpec.stability_steps`): its losses, norms and memory are what the winner's stability is judged by, and a config that diverges there is out.
Where the leader cannot be told from the baseline, the baseline wins: nothing is claimed that chance explains. Without finals the claim rests on a measurement at the
slowest figure that the machine's levels allow; its interval reaches up to the fastest.

All of this is a function of the trials, so a study that is interrupted in its finals goes on with the next measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.reward import (
    MachineLevels,
    RunNoise,
    at_first_level,
    by_reward,
    competes,
    counted_once,
    known_noise_scale,
    reference_of,
    score,
    squares_of_rounds,
    tokens_per_s,
    within_run_variance,
)
from autotune.spec import MeasureSpec, ParallelConfig, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.final_rounds import (
    baseline_of,
    ended_finals,
    measured_finals,
    pooled_runs,
    rounds_of,
    runs_beside,
    runs_of,
    which_are_steady,
    which_count,
)
from autotune.study.controller.machine_changes import changes_in_words

WORTH = 0.01
"""relative gain for which no further round is run"""
LOST = 2
"""rounds in which the machine changed that are made up for"""
RACE = 2
"""times the runs of `final_rounds` rounds of `finalists` and baseline that a race may take"""


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
    """all configs that were measured again, best reward first, with the finals' measurements and rewards"""
    notes: tuple[str, ...] = ()
    """what else must be said, in words"""


def first_measurements(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """All measured trials that compete but the finals', one for each config, as they would have come out at the machine's first level; best reward first."""
    seen = at_first_level(trials, study.objective.stability_weight)
    return sorted((t for t in counted_once(seen) if t.reward is not None and competes(t, study)), key=by_reward)


def contenders(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """First measurements that may win as they are, best first: trials that were stopped early only where nothing completed."""
    measured = first_measurements(trials, study)
    return [t for t in measured if t.status is TrialStatus.COMPLETED] or measured


def participants(trials: Sequence[Trial], study: Study) -> tuple[ParallelConfig, ...]:
    """Who is measured again: the baseline, where it was measured, the best other configs (`MeasureSpec.finalists`), and those that cannot be told from the
    best; empty when that is under two.

    Trials that were stopped early may come back: a lucky measurement of another may have stopped them.
    """
    baseline, least = baseline_of(trials), study.measure.finalists
    first = [baseline.config] if baseline is not None else []
    measured = first_measurements(trials, study)
    best_of = {t.config: t for t in reversed(measured) if t.config not in first}
    others = sorted(best_of.values(), key=by_reward)[: RACE * (least + 1) - 1 if least else 0]
    near = [t for t in others[1:] if not _is_behind(t, others[0], study)]
    chosen = [t.config for t in others[: max(least, len(near) + 1)]]
    return tuple(first + chosen) if chosen and len(first + chosen) > 1 else ()


def _is_behind(trial: Trial, best: Trial, study: Study) -> bool:
    """Whether one measurement each shows that the trial is worse."""
    noise = RunNoise.of(t.measurement for t in (trial, best) if t.measurement is not None)
    apart = _total(best) - _total(trial)
    return apart > _slope(study) * noise.half_width(1, confidence=0.9)


def most_runs(measure: MeasureSpec) -> int:
    """Measurements that a race takes at most."""
    return RACE * measure.final_rounds * (measure.finalists + 1)


def next_final(
    who: Sequence[ParallelConfig], trials: Sequence[Trial], study: Study
) -> tuple[int, ParallelConfig] | None:
    """The round (from 0) and config to measure next; None when the race is over, or cannot be run whole because the runner has fewer ranks than before. `who`:
    participants. `trials`: of the whole study."""
    finals = ended_finals(trials)
    alive = [c for c in who if c not in failed_in_finals(finals)]
    if len(alive) < 2:
        return None
    rounds, least = 0, study.measure.final_rounds
    if not least or _cannot_run(finals):
        return None
    done = {c: len(measured_finals(c, finals)) for c in alive}
    while True:
        if rounds >= least:
            alive = _still_racing(alive, trials, study, rounds)
            missing = sum(done[c] <= rounds for c in alive)
            lost = min(LOST, which_are_steady(alive, finals, trials, rounds).count(False)) * len(alive)
            if len(alive) < 2 or sum(done.values()) + missing > most_runs(study.measure) + lost:
                return None
        for config in alive if rounds % 2 == 0 else alive[::-1]:
            if done[config] <= rounds:
                return rounds, config
        rounds += 1


def _still_racing(
    alive: Sequence[ParallelConfig], trials: Sequence[Trial], study: Study, rounds: int
) -> list[ParallelConfig]:
    """Who goes on after so many rounds: leader, baseline and those that may be ahead of the leader by more than `WORTH`; nobody when the leader stands
    alone."""
    standing = _confirmed(trials, study, alive, rounds)
    leader, baseline = standing[0], baseline_of(trials)
    noise = _noise(trials, alive, rounds)
    finals = ended_finals(trials)
    if not any(which_are_steady(alive, finals, trials, rounds)):
        return list(alive)
    counted = len(runs_beside(leader.config, alive, finals, baseline, rounds)[0])
    margin = _slope(study) * noise.half_width(counted, configs=len(alive) - 1)
    worth = _slope(study) * WORTH
    rivals = [t.config for t in standing[1:] if _total(t) - _total(leader) + margin > worth]
    if not rivals:
        return []
    kept = {leader.config, *rivals, *([baseline.config] if baseline is not None else [])}
    return [c for c in alive if c in kept]


def whole(measure: MeasureSpec) -> MeasureSpec:
    """As many steps as any trial may take: a reference, which all are held against, must not be the shorter one."""
    steps = max(measure.max_steps, measure.stability_steps)
    return replace(measure, min_steps=steps, max_steps=steps)


def longer(measure: MeasureSpec) -> MeasureSpec:
    """How the last round is measured: to the end of `stability_steps`, where a longer run was asked for."""
    return whole(measure) if measure.stability_steps else measure


def decide(trials: Sequence[Trial], study: Study, who: Sequence[ParallelConfig] | None = None) -> Winner:
    """The winner by the final rounds that count, else by the first measurements. `who` took part in the finals (default: `participants`)."""
    finals, levels = ended_finals(trials), MachineLevels(trials)
    failed, baseline = failed_in_finals(finals), baseline_of(trials)
    notes = [f"{config} failed when it was measured again" for config in failed]
    notes += [f"{t.config} could not be measured again: {t.reason}" for t in _cannot_run(finals)]
    who = participants(trials, study) if who is None else who
    alive = [c for c in who if c not in failed]
    is_raced = len(alive) > 1 and all(measured_finals(c, finals) for c in alive)
    confirmed = _confirmed(trials, study, alive) if is_raced else []
    against = next((t for t in confirmed if baseline is not None and t.config == baseline.config), baseline)
    notes += changes_in_words(levels, trials, against)
    ranked = confirmed or [t for t in contenders(trials, study) if t.config not in failed]
    if not ranked:
        return Winner(best=None, baseline=baseline, speedup=None, notes=tuple(notes))
    best = ours = ranked[0]
    if is_raced:
        rounds = rounds_of(best.config, alive, finals, baseline)
        counted = len(runs_beside(best.config, alive, finals, baseline)[0])
        noise = _noise(trials, alive, rounds)
    else:
        rounds, counted, noise = 0, 1, RunNoise.of(t.measurement for t in ranked[:2] if t.measurement)
    rivals = len(ranked) - 1
    unknown = {t.number: 0.0 if is_raced else levels.at(t.number).width for t in ranked}
    tied = [
        t
        for t in ranked[1:]
        if _total(best) - _total(t) <= _slope(study) * (_margin(noise, counted, rivals, best, t) + unknown[t.number])
    ]
    if is_raced and against is not None and against in tied:
        tied = [
            t
            for t in ranked
            if t is not against
            and abs(_total(against) - _total(t)) <= _slope(study) * _margin(noise, counted, rivals, against, t)
        ]
        best = ours = against
        notes.append("nothing that was tried is faster than the default config by more than the noise between runs")
    if not rounds:
        if {t.config for t in (*ranked, against) if t is not None} != {best.config}:
            notes.append("without a finished final round the winner and the speedup rest on one measurement each")
    elif baseline is not None and against is baseline:
        notes.append("the baseline was not measured again: the speedup rests on one measurement each")
        ours = next(t for t in first_measurements(trials, study) if t.config == best.config)
        counted = 1
        unknown = {ours.number: levels.at(ours.number).width}
    if study.objective.metric == "goodput" and not any(known_noise_scale(t.measurement) is not None for t in trials):
        notes.append(
            "no trial measured the gradient noise scale: larger batches were assumed to learn nothing more per step"
        )
    speedup = _speedup(ours, against)
    is_default = against is not None and best.config == against.config
    spread = 1.0 if is_default else math.exp(_margin(noise, counted, rivals, ours, against))
    faster = 1.0 if is_default else math.exp(unknown[ours.number])
    return Winner(
        best=best,
        baseline=against,
        speedup=speedup,
        speedup_low=speedup / spread if speedup is not None else None,
        speedup_high=speedup * spread * faster if speedup is not None else None,
        tied_with=tuple(t.number for t in tied),
        rounds=rounds,
        confirmed=tuple(sorted(confirmed, key=lambda t: (t.config != best.config, by_reward(t)))),
        notes=tuple(notes),
    )


def _margin(noise: RunNoise, rounds: int, rivals: int, *pair: Trial | None) -> float:
    """Half-width of the interval of these two trials' difference in ln speed."""
    within = sum(within_run_variance(t.measurement) for t in pair if t is not None and t.measurement is not None)
    return noise.half_width(rounds, configs=rivals, within=within)


def _speedup(ours: Trial, against: Trial | None) -> float | None:
    """Tokens per second against the baseline's around the same time, which the reward holds: after the finals that of the same rounds."""
    if against is None:
        return None
    if ours.config == against.config:
        return 1.0
    ratio = ours.reward.parts.get("tokens_per_s_ratio") if ours.reward is not None else None
    return ratio or tokens_per_s(ours) / tokens_per_s(against)


def _total(trial: Trial) -> float:
    return trial.reward.total if trial.reward is not None else -math.inf


def _slope(study: Study) -> float:
    """By how much a reward moves with ln speed."""
    return 1.0 - study.objective.stability_weight


def _noise(trials: Sequence[Trial], who: Sequence[ParallelConfig], rounds: int) -> RunNoise:
    """The noise between the runs of the finals."""
    finals = ended_finals(trials)
    runs = [runs_of(config, finals, rounds) for config in who]
    steady = which_are_steady(who, finals, trials, rounds)
    counted = [list(zip(config, which_count(config, steady), strict=True)) for config in runs if config]
    squares, freedom = squares_of_rounds([[m.tokens_per_s if good else math.nan for m, good in c] for c in counted])
    return RunNoise.of((m for config in counted for m, good in config if good), squares, freedom)


def _confirmed(
    trials: Sequence[Trial], study: Study, alive: Sequence[ParallelConfig], rounds: int | None = None
) -> list[Trial]:
    """The first trials of these configs with what the finals (their first `rounds`) showed beside the baseline of the same rounds, best reward first."""
    finals = ended_finals(trials)
    baseline = baseline_of(trials)
    first = {t.config: t for t in reversed(first_measurements(trials, study))}
    again = []
    for config in alive:
        runs, theirs = runs_beside(config, alive, finals, baseline, rounds)
        pooled, beside = (
            pooled_runs(runs),
            pooled_runs(theirs) if theirs else baseline.measurement if baseline else None,
        )
        trial = replace(first[config], measurement=pooled)
        again.append((trial, beside))
    return sorted(
        (
            replace(
                t,
                reward=score(
                    t,
                    reference=reference_of([t for t, _ in again], beside),
                    objective=study.objective,
                    workload=study.workload,
                ),
            )
            for t, beside in again
        ),
        key=by_reward,
    )


def failed_in_finals(trials: Sequence[Trial]) -> list[ParallelConfig]:
    """Configs that failed when they were measured again; they cannot win."""
    finals = (t for t in trials if t.purpose is TrialPurpose.FINAL)
    return list(dict.fromkeys(t.config for t in finals if t.status is TrialStatus.FAILED))


def _cannot_run(finals: Sequence[Trial]) -> list[Trial]:
    """Final measurements that could not be run."""
    return [t for t in finals if t.status is TrialStatus.INFEASIBLE]
