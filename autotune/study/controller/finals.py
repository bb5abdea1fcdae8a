"""The finals: the best configs and the baseline are measured again, in turn, before a winner is named.

The best of many noisy measurements is on average too good (the winner's curse), and a machine drifts while a study runs. So the
claim does not rest on the search's own numbers: finalists and baseline alternate, every other round in the opposite order, which
cancels a linear drift, and the medians over the steps of all rounds decide, with equally many steps of each round. Rounds that not everyone
finished do not count; a config that fails when it is measured again cannot win. The last round may be longer (`MeasureSpec.stability_steps`):
its losses, norms and memory are what the winner's stability is judged by, and a config that diverges there is out.

All of this is a function of the trials, so a study that is interrupted in its finals goes on with the next measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.reward import by_reward, competes, known_noise_scale, reference_of, score, tokens_per_s
from autotune.spec import Measurement, MeasureSpec, ParallelConfig, Study, Trial, TrialPurpose, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Who won, and by what."""

    best: Trial | None
    """the trial in which the winning config was first measured; after finals with their measurement and reward"""
    baseline: Trial | None
    """the same of the baseline; None when it could not be measured"""
    speedup: float | None
    """winner against baseline in tokens per second; None without a baseline"""
    rounds: int = 0
    """final rounds that count"""
    confirmed: tuple[Trial, ...] = ()
    """all configs that were measured again, best reward first, with the finals' measurements and rewards"""
    notes: tuple[str, ...] = ()
    """what else must be said, in words"""


def first_measurements(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """All measured trials that compete but the finals', best reward first."""
    first = [t for t in trials if t.is_measured and t.reward is not None and t.purpose is not TrialPurpose.FINAL]
    measured = [t for t in first if competes(t, study)]
    return sorted(measured, key=by_reward)


def contenders(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """First measurements that may win as they are, best first: trials that were stopped early only where nothing completed."""
    measured = first_measurements(trials, study)
    return [t for t in measured if t.status is TrialStatus.COMPLETED] or measured


def baseline_of(trials: Sequence[Trial]) -> Trial | None:
    """The baseline's first measurement."""
    return next((t for t in trials if t.purpose is TrialPurpose.BASELINE and t.is_measured), None)


def participants(trials: Sequence[Trial], study: Study) -> tuple[ParallelConfig, ...]:
    """Who is measured again: the baseline, where it was measured, and the best other configs (`MeasureSpec.finalists`); empty when that is under two.

    Trials that were stopped early may come back: a lucky measurement of another may have stopped them.
    """
    baseline = baseline_of(trials)
    first = [baseline.config] if baseline is not None else []
    configs = dict.fromkeys(t.config for t in first_measurements(trials, study))
    others = [c for c in configs if c not in first][: study.measure.finalists]
    return tuple(first + others) if others and len(first + others) > 1 else ()


def next_final(
    who: Sequence[ParallelConfig], finals: Sequence[Trial], rounds: int
) -> tuple[int, ParallelConfig] | None:
    """The round (from 0) and config to measure next, given the terminal final trials; None when all rounds are done."""
    alive = [c for c in who if c not in failed_in_finals(finals)]
    if len(alive) < 2:
        return None
    done = {c: len(_measured(c, finals)) for c in alive}
    for r in range(rounds):
        for config in alive if r % 2 == 0 else alive[::-1]:
            if done[config] <= r:
                return r, config
    return None


def whole(measure: MeasureSpec) -> MeasureSpec:
    """As many steps as any trial may take: a reference, which all are held against, must not be the shorter one."""
    steps = max(measure.max_steps, measure.stability_steps)
    return replace(measure, min_steps=steps, max_steps=steps)


def longer(measure: MeasureSpec) -> MeasureSpec:
    """How the last round is measured: to the end of `stability_steps`, where a longer run was asked for."""
    return whole(measure) if measure.stability_steps else measure


def decide(trials: Sequence[Trial], study: Study, who: Sequence[ParallelConfig] | None = None) -> Winner:
    """The winner by the final rounds that count, else by the first measurements. `who` took part in the finals (default: `participants`)."""
    finals = [t for t in trials if t.purpose is TrialPurpose.FINAL and t.status.is_terminal]
    failed, baseline = failed_in_finals(finals), baseline_of(trials)
    notes = [f"{config} failed when it was measured again" for config in failed]
    who = participants(trials, study) if who is None else who
    alive = [c for c in who if c not in failed]
    rounds = min((len(_measured(c, finals)) for c in alive), default=0) if len(alive) > 1 else 0
    confirmed = _confirmed(trials, study, alive, rounds) if rounds else []
    ranked = confirmed or [t for t in contenders(trials, study) if t.config not in failed]
    if not ranked:
        return Winner(best=None, baseline=baseline, speedup=None, notes=tuple(notes))
    best = ours = ranked[0]
    against = next((t for t in confirmed if baseline is not None and t.config == baseline.config), baseline)
    if not rounds:
        notes.append("no final round was finished: the winner and the speedup rest on one measurement each")
    elif baseline is not None and against is baseline:
        notes.append("the baseline was not measured again: the speedup rests on one measurement each")
        ours = next(t for t in first_measurements(trials, study) if t.config == best.config)
    if study.objective.metric == "goodput" and not any(known_noise_scale(t.measurement) is not None for t in trials):
        notes.append(
            "no trial measured the gradient noise scale: larger batches were assumed to learn nothing more per step"
        )
    return Winner(
        best=best,
        baseline=against,
        speedup=tokens_per_s(ours) / tokens_per_s(against) if against is not None else None,
        rounds=rounds,
        confirmed=tuple(confirmed),
        notes=tuple(notes),
    )


def _confirmed(trials: Sequence[Trial], study: Study, alive: Sequence[ParallelConfig], rounds: int) -> list[Trial]:
    """The first trials of these configs with what the finals showed, best reward first."""
    finals = [t for t in trials if t.purpose is TrialPurpose.FINAL]
    pooled = {c: _pooled(_measured(c, finals)[:rounds]) for c in alive}
    baseline = baseline_of(trials)
    first = {t.config: t for t in reversed(first_measurements(trials, study))}
    reference = reference_of(trials, pooled.get(baseline.config, baseline.measurement) if baseline else None)
    measured = (replace(first[c], measurement=m) for c, m in pooled.items())
    again = [
        replace(t, reward=score(t, reference=reference, objective=study.objective, workload=study.workload))
        for t in measured
    ]
    return sorted(again, key=by_reward)


def _pooled(runs: Sequence[Trial]) -> Measurement:
    """The last round's measurement with the steps of all rounds, equally many of each."""
    measurements = [t.measurement for t in runs if t.measurement is not None]
    steps = min(len(m.step_times_s) for m in measurements)
    return replace(measurements[-1], step_times_s=tuple(t for m in measurements for t in m.step_times_s[:steps]))


def _measured(config: ParallelConfig, finals: Sequence[Trial]) -> list[Trial]:
    return [t for t in finals if t.config == config and t.is_measured]


def failed_in_finals(trials: Sequence[Trial]) -> list[ParallelConfig]:
    """Configs that failed when they were measured again; they cannot win."""
    finals = (t for t in trials if t.purpose is TrialPurpose.FINAL)
    return list(dict.fromkeys(t.config for t in finals if t.status is TrialStatus.FAILED))
