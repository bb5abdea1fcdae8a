"""The finals: re-measure the best configs and the baseline alternately before a winner is decided.

The best of many noisy measurements is biased upward (the winner's curse), and the machine drifts
during a study. So the result is not based on measurements of the search: finalists and baseline
alternate, every second round in reverse order, which cancels a linear drift, and each config is
compared with the baseline of the same rounds, with equally many steps of each.

    finalists   the best `MeasureSpec.finalists` configs that were measured to the end, and all whose first measurement is statistically tied with the best
    round       one run of each config still in the race. After `MeasureSpec.final_rounds` rounds, configs that are significantly behind the leader drop out
    end         one config is significantly ahead of all others, or the others are ahead by less than `WORTH` at most, or `RACE` times the runs of
                `final_rounds` rounds of `finalists` and baseline are used up
    late contenders  configs whose first measurement is above all that raced, by the results of the finals. The best `finalists` of them race with the baseline for
                `final_rounds` rounds, then those above these, until there are none, or as many runs as the first race may take are used up. The last ones
                continue while they are above the leader and have fewer runs than it

"Significantly" means outside the 95% interval of `autotune.reward.run_noise`. A config that fails
when it is re-measured cannot win. The last round may be longer (`MeasureSpec.stability_steps`): the
winner's stability is judged by its losses, norms and memory, and a config that diverges in it is
out. `winner` decides who has won.

All of this is a function of the trials, so a study that is interrupted in its finals continues with
the next measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.reward import (
    RunNoise,
    at_first_level,
    by_reward,
    competes,
    counted_once,
    reference_of,
    score,
    squares_of_rounds,
    tokens_per_s,
)
from autotune.spec import (
    Measurement,
    MeasureSpec,
    ParallelConfig,
    Study,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.spec.runs.measurement import at_highest_peak
from autotune.study.controller.finals.rounds import (
    baseline_of,
    ended_finals,
    gained,
    joined,
    measured_finals,
    pooled_runs,
    rounds_of,
    runs_beside,
    runs_of,
    which_are_steady,
    which_count,
)
from autotune.study.controller.finals.too_noisy import too_noisy

WORTH = 0.01
"""relative gain below which no further round is run"""
LOST = 2
"""maximum number of rounds that are repeated because the machine changed"""
ROUNDING = 1e-9
"""difference of two rewards that counts as rounding error"""
RACE = 2
"""maximum runs of a race, as a multiple of those of `final_rounds` rounds of `finalists` and
baseline"""


def first_measurements(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """The first measured trial of each config that competes, corrected to the machine's first level;
    best reward first. Trials of the finals are not included."""
    seen = at_first_level(trials, study.objective.stability_weight)
    return sorted(
        (t for t in counted_once(seen) if t.reward is not None and competes(t, study)),
        key=by_reward,
    )


def contenders(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """First measurements that may win without finals, best first. Trials that were stopped early are
    included only if none completed."""
    measured = first_measurements(trials, study)
    return [t for t in measured if t.status is TrialStatus.COMPLETED] or measured


def participants(trials: Sequence[Trial], study: Study) -> tuple[ParallelConfig, ...]:
    """The first finalists, and late contenders that have final rounds together with the baseline."""
    first, finals, baseline = (
        first_finalists(trials, study),
        ended_finals(trials),
        baseline_of(trials),
    )
    late = dict.fromkeys(t.config for t in finals if t.config not in first)
    return (*first, *(c for c in late if first and rounds_of(c, first, finals, baseline)))


def first_finalists(trials: Sequence[Trial], study: Study) -> tuple[ParallelConfig, ...]:
    """The configs that are re-measured first: the baseline, if it was measured, the best other
    configs (`MeasureSpec.finalists`), and those statistically tied with the best. Empty if there are
    fewer than two.

    Trials that were stopped early because they cannot win take part only if there is nothing else to
    compare. If they were stopped because of a lucky measurement of another config, the finals show
    that, and they join as late contenders.
    """
    baseline, least = baseline_of(trials), study.measure.finalists
    first = [baseline.config] if baseline is not None else []
    measured = first_measurements(trials, study)
    best_of = {t.config: t for t in reversed(measured) if t.config not in first}
    ended = [t for t in best_of.values() if t.status is TrialStatus.COMPLETED]
    others = sorted(ended if len(first) + len(ended) > 1 else best_of.values(), key=by_reward)
    others = others[: RACE * (least + 1) - 1 if least else 0]
    near = [t for t in others[1:] if not _is_behind(t, others[0], study)]
    chosen = [t.config for t in others[: max(least, len(near) + 1)]]
    return tuple(first + chosen) if chosen and len(first + chosen) > 1 else ()


def _is_behind(trial: Trial, best: Trial, study: Study) -> bool:
    """Whether the trial is significantly worse, by one measurement each."""
    noise = RunNoise.of(t.measurement for t in (trial, best) if t.measurement is not None)
    difference = total_of(best) - total_of(trial)
    return difference > slope_of(study) * noise.half_width(1, confidence=0.9)


def least_runs(study: Study, who: Sequence[ParallelConfig] | None = None) -> int:
    """Number of measurements of the first race's `final_rounds` rounds if no config fails. `who`: the
    first finalists; None while they are unknown."""
    expected = 1 + min(study.measure.finalists, study.budget.max_trials)
    return study.measure.final_rounds * (expected if who is None else len(who))


def most_runs(study: Study) -> int:
    """Maximum number of measurements of the first race, without repeated rounds; also the maximum of
    all races of late contenders together. Limited by the number of search trials, because the finals
    decide between no more configs than that."""
    return max(least_runs(study), min(RACE * least_runs(study), study.budget.max_trials))


def longest_finals(study: Study) -> int:
    """Maximum number of measurements of all races, without repeated rounds: the first race with
    `final_rounds` rounds of all tied configs, the run of the baseline that closes it, and the races
    of late contenders."""
    least, references = study.measure.finalists, len(study.reference_batches)
    configs = min(RACE * (least + 1), 1 + study.budget.max_trials + references)
    return max(most_runs(study), study.measure.final_rounds * configs) + 1 + most_runs(study)


def expected_runs(study: Study) -> str:
    """A sentence for users about the expected number of runs and their purposes; empty for a study
    of proxies, whose trials are chosen as it runs."""
    if study.at_hand is not None:
        return ""
    most, least = study.budget.max_trials, least_runs(study)
    search = f"up to {most} search trials" if most > 1 else "1 search trial"
    if most > 1:
        search += " (fewer once no other config is likely to be faster)"
    not_counted = "repeats if a worker is lost or the machine's speed changes"
    if study.reference_batches:
        not_counted = f"fp32 references for losses, one per global batch size, and {not_counted}"
    best = min(study.measure.finalists, most)
    if not (least and best):
        return (
            f"expect up to {most + 1} runs: the baseline and {search}. Not counted: {not_counted}"
        )
    raced = f"the best {best}" if best > 1 else "the best"
    longest = longest_finals(study)
    return (
        f"expect up to {most + 1 + least} runs, or up to {most + 1 + longest} if configs are close: the baseline, {search}, up to {least} finals that re-measure {raced} and "
        f"the baseline side by side, and up to {longest - least} more finals while the winner is unclear. Not counted: {not_counted}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NextFinal:
    """The next measurement of the finals."""

    config: ParallelConfig
    round: int
    """round of the finals, from 0"""
    of_race: int
    """round of its race, from 0"""
    is_late: bool = False
    """whether this is a race of late contenders"""
    is_closing: bool = False
    """whether this is a run of the baseline that closes the last round of a race"""

    def reason(self, measure: MeasureSpec) -> str:
        """Why the config is measured, for the trial's record."""
        n, least = self.of_race + 1, measure.final_rounds
        if self.is_closing:
            return "re-measured to check whether the machine changed"
        if self.is_late:
            return f"re-measured: round {n}, looked faster than the re-measured finalists"
        return f"re-measured: round {n}" + (f" of {least}" if n <= least else " (still a tie)")


def next_final(
    who: Sequence[ParallelConfig], trials: Sequence[Trial], study: Study
) -> NextFinal | None:
    """The next measurement; None if nothing is left to decide, the runs are used up, or a race cannot
    be completed because the runner has fewer ranks than before. `who`: the first finalists;
    `trials`: all trials of the study."""
    finals, failed = ended_finals(trials), failed_in_finals(trials)
    alive = raced = [c for c in who if c not in failed]
    if len(raced) < 2 or not study.measure.final_rounds or cannot_run(finals):
        return None
    done = {c: len(measured_finals(c, finals)) for c in raced}
    rounds = 0
    while alive := _first_race(alive, done, trials, study, rounds):
        if (config := _missing(alive, done, rounds)) is not None:
            return NextFinal(config=config, round=rounds, of_race=rounds)
        rounds += 1
    default = next(
        (t.config for t in (baseline_of(trials),) if t is not None and t.config in raced), None
    )
    if default is not None and rounds % 2 and study.measure.final_rounds < rounds >= done[default]:
        return NextFinal(config=default, round=rounds, of_race=rounds, is_closing=True)
    return _next_late(who, trials, study, rounds)


def _missing(
    alive: Sequence[ParallelConfig], done: Mapping[ParallelConfig, int], rounds: int
) -> ParallelConfig | None:
    """The config that is next in round `rounds`; None if the round is complete. `done`: number of
    rounds by config."""
    return next((c for c in (alive if rounds % 2 == 0 else alive[::-1]) if done[c] <= rounds), None)


def _first_race(
    alive: Sequence[ParallelConfig],
    done: Mapping[ParallelConfig, int],
    trials: Sequence[Trial],
    study: Study,
    rounds: int,
) -> list[ParallelConfig]:
    """The configs that run another round after `rounds`; empty if the race is over."""
    if rounds < study.measure.final_rounds:
        return list(alive)
    alive = _still_racing(alive, trials, study, rounds)
    lost = min(
        LOST, which_are_steady(alive, ended_finals(trials), trials, rounds).count(False)
    ) * len(alive)
    run = sum(min(n, rounds) for n in done.values())
    return alive if len(alive) > 1 and run + len(alive) <= most_runs(study) + lost else []


def _next_late(
    who: Sequence[ParallelConfig], trials: Sequence[Trial], study: Study, rounds: int
) -> NextFinal | None:
    """The next measurement of late contenders after the first race, which had `rounds` rounds; None
    if there are none or their runs are used up. The best configs above all that raced run together
    with the baseline, then those above these, and so on. A race begins with an even round, so that
    each pair of rounds lies between two runs of the baseline."""
    finals, failed, baseline = ended_finals(trials), failed_in_finals(trials), baseline_of(trials)
    raced, known, least = [c for c in who if c not in failed], list(who), study.measure.final_rounds
    if baseline is None or baseline.config not in raced or too_noisy(trials, baseline) is not None:
        return None
    default, left = baseline.config, most_runs(study)
    while True:
        after_closing = left - rounds % 2
        seats = min(max(1, study.measure.finalists), after_closing // least - 1)
        joining = _late_contenders(raced, known, trials, study, rounds)[: max(0, seats)]
        if not joining:
            return None
        done = {default: len(measured_finals(default, finals))}
        if rounds % 2:  # the baseline closes the pair of rounds that it opened
            if done[default] <= rounds:
                return NextFinal(config=default, round=rounds, of_race=rounds, is_closing=True)
            rounds, left = rounds + 1, after_closing
        began, known = rounds, known + joining
        alive = [default, *(c for c in joining if c not in failed)]
        done |= {c: began + len(measured_finals(c, finals)) for c in alive[1:]}
        late = alive[1:]
        while len(alive) > 1 and len(alive) <= left:
            if (config := _missing(alive, done, rounds)) is not None:
                return NextFinal(config=config, round=rounds, of_race=rounds - began, is_late=True)
            rounds, left = rounds + 1, left - len(alive)
            if rounds - began >= least:
                others = _late_contenders([*raced, *late], known, trials, study, rounds)
                alive = (
                    []
                    if others
                    else [default, *_still_above(alive[1:], raced, trials, study, began, rounds)]
                )
        raced += late


def _late_contenders(
    raced: Sequence[ParallelConfig],
    known: Sequence[ParallelConfig],
    trials: Sequence[Trial],
    study: Study,
    rounds: int,
) -> list[ParallelConfig]:
    """Configs, except the `known` ones, whose first measurement is above the best result of those
    that raced `rounds` rounds; best first."""
    baseline = baseline_of(trials)
    standing = confirmed_by(trials, study, raced, rounds)
    assert baseline is not None
    assert baseline.measurement is not None
    default = next(t for t in standing if t.config == baseline.config)
    # correct the measurements of the search by the ratio of the baseline's pooled rounds to its
    # first measurement (`autotune.results.config_figures`)
    correction = gained(baseline.config, trials, rounds) + math.log(
        tokens_per_s(baseline) / tokens_per_s(default)
    )
    least = total_of(standing[0]) - slope_of(study) * correction + ROUNDING
    return [
        t.config
        for t in first_measurements(trials, study)
        if t.config not in known and total_of(t) > least
    ]


def _still_above(
    late: Sequence[ParallelConfig],
    raced: Sequence[ParallelConfig],
    trials: Sequence[Trial],
    study: Study,
    began: int,
    rounds: int,
) -> list[ParallelConfig]:
    """Late contenders that run another round: they are above the best of those that raced before
    them, and were not yet measured as often as that one."""
    finals, baseline = ended_finals(trials), baseline_of(trials)
    leader = confirmed_by(trials, study, raced, rounds)[0]
    steady = which_are_steady([*raced, *late], finals, trials, rounds)[began:]
    most = len(runs_beside(leader.config, raced, finals, baseline, rounds)[0])
    if sum(steady) >= most or len(steady) >= most + LOST:
        return []
    standing = confirmed_by(trials, study, [*raced, *late], rounds)
    return [t.config for t in standing if t.config in late and total_of(t) > total_of(leader)]


def _still_racing(
    alive: Sequence[ParallelConfig], trials: Sequence[Trial], study: Study, rounds: int
) -> list[ParallelConfig]:
    """The configs that run another round after `rounds`: leader, baseline and those that may be ahead
    of the leader by more than `WORTH`; empty if there are no such rivals."""
    standing = confirmed_by(trials, study, alive, rounds)
    leader, baseline = standing[0], baseline_of(trials)
    noise = noise_of(trials, alive, rounds)
    finals = ended_finals(trials)
    if not any(which_are_steady(alive, finals, trials, rounds)):
        return list(alive)
    counted = len(runs_beside(leader.config, alive, finals, baseline, rounds)[0])
    margin = slope_of(study) * noise.half_width(counted, configs=len(alive) - 1)
    worth = slope_of(study) * WORTH
    rivals = [t.config for t in standing[1:] if total_of(t) - total_of(leader) + margin > worth]
    if not rivals:
        return []
    kept = {leader.config, *rivals, *([baseline.config] if baseline is not None else [])}
    return [c for c in alive if c in kept]


def whole(measure: MeasureSpec) -> MeasureSpec:
    """The measurement of a reference: as many steps as any trial may take, so that it is not shorter
    than a trial that is compared with it."""
    steps = max(measure.max_steps, measure.stability_steps)
    return replace(measure, min_steps=steps, max_steps=steps)


def longer(measure: MeasureSpec) -> MeasureSpec:
    """The measurement of the last round: with `stability_steps` steps if that is set."""
    return whole(measure) if measure.stability_steps else measure


def total_of(trial: Trial) -> float:
    """The trial's reward; -inf without one."""
    return trial.reward.total if trial.reward is not None else -math.inf


def slope_of(study: Study) -> float:
    """Derivative of a reward with respect to ln tokens/s."""
    return 1.0 - study.objective.stability_weight


def noise_of(trials: Sequence[Trial], who: Sequence[ParallelConfig], rounds: int) -> RunNoise:
    """The noise between runs of the finals. A run disturbed by a burst of other load contributes its
    median step time, which a burst hardly changes: on a shared machine the runs that count may be
    the few quiet ones, whose spread alone would be too small."""
    finals = ended_finals(trials)
    baseline = baseline_of(trials) if len(who) else None
    baseline = baseline if baseline is not None and baseline.config in who else None
    steady = which_are_steady(who, finals, trials, rounds)
    counted: list[Measurement] = []
    speeds = []
    for config in who:
        late = joined(config, finals, baseline)
        runs = runs_of(config, finals, max(0, rounds - late))
        if not runs:
            continue
        pairs = list(zip(runs, which_count(runs, steady[late:]), strict=True))
        counted += [m for m, good in pairs if good]
        rounds_of_config = zip(pairs, steady[late:], strict=False)
        speeds.append(
            [math.nan] * late
            + [_speed(m, good, is_steady) for (m, good), is_steady in rounds_of_config]
        )
    squares, freedom = squares_of_rounds(speeds)
    return RunNoise.of(counted, squares, freedom)


def _speed(run: Measurement, counts: bool, is_steady: bool) -> float:
    """Tokens/s of a run of the finals. A run that does not count gives that of its median step, or
    NaN if the round was not steady."""
    if counts:
        return run.tokens_per_s
    return run.median_tokens_per_s if is_steady else math.nan


def confirmed_by(
    trials: Sequence[Trial],
    study: Study,
    alive: Sequence[ParallelConfig],
    rounds: int | None = None,
) -> list[Trial]:
    """The first trials of these configs with the pooled measurement of their finals (the first
    `rounds`), the reward relative to the baseline in the same rounds, and the highest memory peak of
    all runs; best reward first."""
    finals = ended_finals(trials)
    baseline = baseline_of(trials)
    first = {t.config: t for t in reversed(first_measurements(trials, study))}
    remeasured = []
    for config in alive:
        runs, theirs = runs_beside(config, alive, finals, baseline, rounds)
        baseline_measurement = baseline.measurement if baseline else None
        if theirs:
            baseline_measurement = pooled_runs(theirs)
        measured = (t.measured for t in (first[config], *measured_finals(config, finals)[:rounds]))
        pooled = at_highest_peak(pooled_runs(runs), filter(None, measured))
        remeasured.append((replace(first[config], measurement=pooled), baseline_measurement))
    return sorted(
        (
            replace(
                t,
                reward=score(
                    t,
                    reference=reference_of([t for t, _ in remeasured], baseline_measurement),
                    objective=study.objective,
                    workload=study.workload,
                ),
            )
            for t, baseline_measurement in remeasured
        ),
        key=by_reward,
    )


def failed_in_finals(trials: Sequence[Trial]) -> list[ParallelConfig]:
    """Configs that failed when they were re-measured; they cannot win."""
    finals = (t for t in trials if t.purpose is TrialPurpose.FINAL)
    return list(dict.fromkeys(t.config for t in finals if t.status is TrialStatus.FAILED))


def cannot_run(finals: Sequence[Trial]) -> list[Trial]:
    """Trials of the finals that could not be run."""
    return [t for t in finals if t.status is TrialStatus.INFEASIBLE]
