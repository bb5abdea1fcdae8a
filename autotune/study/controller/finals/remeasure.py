"""Chooses what is re-measured during the search: the baseline, to detect changes of the machine, and
configs that were judged unfairly because of a change.

The baseline is re-measured

    after a deviating run of it      at once, until two consecutive runs agree, up to `MOST_IN_A_ROW` consecutive runs
    after wrong predictions          if the last trials were all slower, or all faster, than predicted by more than `SURPRISING` standard deviations: two trials,
                                     doubled after each run that showed no change, up to `MOST_SURPRISES`; before the finals, one of the last two
    regularly                        if the trials since its last run took 1 / `SHARE` times as long as one of its runs

So a study with accurate predictions spends at most the share `SHARE` of its trials' time on this, and
nothing if it is shorter than 1 / `SHARE` trials. These runs do not count as trials for
`Budget.max_trials`, but their wall time and rank-seconds count.

After a change, every search trial is judged again at the machine's levels
(`autotune.reward.machine_level`). Trials that were stopped early or whose level is unknown are
repeated if they may beat the best. A repetition is a search trial and counts as one.
"""

from __future__ import annotations

import math

from autotune.reward import DIVERGED_CEILING, prediction_error
from autotune.spec import ParallelConfig, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.scoring import noise_between_two_runs
from autotune.study.controller.trial_index import TrialIndex, seconds_of

SHARE = 0.1
"""maximum share of the trials' time for regular repetitions of the baseline"""
SURPRISING = 2.0
"""error of a prediction that is surprising, in standard deviations"""
MOST_SURPRISES = 8
"""number of consecutive surprising trials that always triggers a repetition"""
MOST_IN_A_ROW = 3
"""maximum number of consecutive runs of the baseline"""


def why_measure_default(index: TrialIndex, *, at_end: bool = False) -> str:
    """Why the baseline must be re-measured now; empty if it need not. `at_end`: the search has no
    further trial."""
    if index.baseline is None:
        return ""
    in_a_row, since = _since_last_run(index)
    last = in_a_row[0]
    if not last.status.is_terminal:
        return ""
    if last.number in index.levels.odd and len(in_a_row) < MOST_IN_A_ROW and not since:
        return "re-measuring the baseline: its last run differs from earlier ones by more than the noise between runs"
    measured = [t for t in since if t.is_measured]
    if surprising := _surprise(measured, index, at_end=at_end):
        trials = (
            f"the last {len(surprising)} trials were all"
            if len(surprising) > 1
            else "one of the last trials was"
        )
        return f"re-measuring the baseline: {trials} {_difference(surprising)} than predicted"
    if not at_end and math.fsum(map(seconds_of, measured)) * SHARE >= index.baseline_s > 0:
        return f"re-measuring the baseline: {len(since)} trials have ended since its last run"
    return ""


def _since_last_run(index: TrialIndex) -> tuple[list[Trial], list[Trial]]:
    """The latest consecutive runs of the baseline, the last one first; and the trials that ended
    after them, sorted by number."""
    runs, since = list[Trial](), list[Trial]()
    for number in range(len(index.trials) - 1, -1, -1):
        trial = index.trials[number]
        if trial.status is TrialStatus.CANCELLED:
            continue
        if trial.purpose is TrialPurpose.BASELINE:
            runs.append(trial)
        elif runs:
            break
        elif trial.status.is_terminal:
            since.append(trial)
    return runs, since[::-1]


def _surprise(measured: list[Trial], index: TrialIndex, *, at_end: bool) -> list[float]:
    """ln(measured / predicted step time) of the latest trials if all are surprisingly slow or all
    surprisingly fast, else empty. `at_end`: of one surprising trial among the last two."""
    phase = index.levels.phases[-1]
    quiet_runs = len(phase.runs) - (1 if len(index.levels.phases) == 1 else 2)
    enough = 2 if at_end else min(2 << quiet_runs, MOST_SURPRISES)
    latest = [t for t in measured if t.purpose is TrialPurpose.SEARCH][-enough:]
    errors = [prediction_error(t, index.levels.now) or 0.0 for t in latest]
    slower, faster = (
        [t for t, e in zip(latest, errors, strict=True) if s * e > SURPRISING] for s in (1, -1)
    )
    if at_end:
        return [_log_slowness(t) + index.levels.now for t in (slower or faster)[-1:]]
    same_side = max(slower, faster, key=len)
    return (
        [_log_slowness(t) + index.levels.now for t in same_side] if len(same_side) == enough else []
    )


def _log_slowness(trial: Trial) -> float:
    """ln(measured / predicted step time)."""
    assert trial.estimate is not None
    assert trial.measurement is not None
    return math.log(trial.measurement.step_time_s / float(trial.estimate.step_time_s))


def _difference(logs: list[float]) -> str:
    """`1.5 times slower` or `1.5 times faster`, by the smallest of the differences."""
    least = min(logs, key=abs)
    return f"{math.exp(abs(least)):.2g} times {'slower' if least > 0 else 'faster'}"


def unfairly_judged(index: TrialIndex, study: Study) -> list[Trial]:
    """Search trials that may beat the best after a change of the machine, the most promising first;
    without those that were repeated already."""
    if not index.levels.is_uneven or index.best is None or index.best.reward is None:
        return []
    weight, noise = study.objective.stability_weight, noise_between_two_runs(index.best)
    candidates: list[tuple[float, Trial]] = []
    for trial in index.trials.values():
        is_stopped = trial.status is TrialStatus.STOPPED
        if (
            trial.purpose is not TrialPurpose.SEARCH
            or not trial.is_measured
            or trial.number == index.best.number
            or not (is_stopped or not index.levels.at(trial.number).is_known)
        ):
            continue
        reward = index.levels.best_reward(trial, weight)
        if reward is None or reward.total <= DIVERGED_CEILING:
            continue
        margin = noise if is_stopped else 0.0
        steady = 1.0 if is_stopped else reward.stability
        highest_total = (1 - weight) * (reward.throughput + margin) + weight * steady
        if highest_total > index.best.reward.total:
            candidates.append((highest_total, trial))
    if not candidates:
        return []
    last: dict[ParallelConfig, int] = {}
    for trial in index.trials.values():
        if trial.status is not TrialStatus.CANCELLED:
            last[trial.config] = max(trial.number, last.get(trial.config, 0))
    candidates.sort(key=lambda pair: (-pair[0], pair[1].number))
    return [t for _, t in candidates if last[t.config] == t.number]
