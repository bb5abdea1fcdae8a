"""What is re-measured during the search: the baseline, to see whether the machine changed; and
configs that were stopped unfairly because it had.

The baseline is due

    after its own run was off        at once, until two runs in a row agree, but not more than `MOST_IN_A_ROW` runs in a row
    when predictions fail together   the last trials were all slower, or all faster, than predicted by more than `SURPRISING` standard deviations: two trials,
                                     and twice as many after each run that showed no change, up to `MOST_SURPRISES`; before the finals, one of the last two
    when time went by                the trials since its last run took 1 / `SHARE` times as long as one of its runs

So a study whose predictions hold spends at most `SHARE` of its trials' time on this, and nothing
where it is shorter than 1 / `SHARE` trials. These runs are no trials of the searcher:
`Budget.max_trials` does not count them, while wall time and rank-seconds do.

After a change each search trial is judged again at the machine's levels
(`autotune.reward.machine_level`). One that was stopped early, or whose level is not known, is asked
for again where it may beat the best. That is a trial of the search, and counts as one.
"""

from __future__ import annotations

import math

from autotune.reward import DIVERGED_CEILING, prediction_error
from autotune.spec import ParallelConfig, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.scoring import noise_between_two_runs
from autotune.study.controller.trial_index import TrialIndex, seconds_of

SHARE = 0.1
"""of the time of trials that repeated runs of the baseline may take"""
SURPRISING = 2.0
"""standard deviations by which a prediction must fail"""
MOST_SURPRISES = 8
"""trials in a row that always suffice"""
MOST_IN_A_ROW = 3
"""runs of the baseline in a row"""


def why_measure_default(index: TrialIndex, *, at_end: bool = False) -> str:
    """Why the baseline is re-measured now, in words; empty while it is not. `at_end`: no further
    trial of the search will tell more."""
    if index.baseline is None:
        return ""
    in_a_row, since = _since_last_run(index)
    last = in_a_row[0]
    if not last.status.is_terminal:
        return ""
    if last.number in index.levels.odd and len(in_a_row) < MOST_IN_A_ROW and not since:
        return "re-measuring the baseline: its last run differs from earlier ones by more than the noise between runs"
    measured = [t for t in since if t.is_measured]
    if by := _surprise(measured, index, at_end=at_end):
        trials = (
            f"the last {len(by)} trials were all" if len(by) > 1 else "one of the last trials was"
        )
        return f"re-measuring the baseline: {trials} {_apart(by)} than predicted"
    if not at_end and math.fsum(map(seconds_of, measured)) * SHARE >= index.baseline_s > 0:
        return f"re-measuring the baseline: {len(since)} trials have ended since its last run"
    return ""


def _since_last_run(index: TrialIndex) -> tuple[list[Trial], list[Trial]]:
    """The latest runs of the baseline with none of another between them, the last one first; and
    the trials that ended since, by number."""
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
    """ln of measured over predicted step time of the latest trials, where all are surprising and to
    the same side; at the end of one of the last two. Else empty."""
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
    alike = max(slower, faster, key=len)
    return [_log_slowness(t) + index.levels.now for t in alike] if len(alike) == enough else []


def _log_slowness(trial: Trial) -> float:
    assert trial.estimate is not None
    assert trial.measurement is not None
    return math.log(trial.measurement.step_time_s / float(trial.estimate.step_time_s))


def _apart(logs: list[float]) -> str:
    """`1.5 times slower` or `1.5 times faster`, at least."""
    least = min(logs, key=abs)
    return f"{math.exp(abs(least)):.2g} times {'slower' if least > 0 else 'faster'}"


def unfairly_judged(index: TrialIndex, study: Study) -> list[Trial]:
    """Search trials that may beat the best now that the machine is known to have changed, the most
    promising first; without those that were asked for again."""
    if not index.levels.is_uneven or index.best is None or index.best.reward is None:
        return []
    weight, noise = study.objective.stability_weight, noise_between_two_runs(index.best)
    hopes: list[tuple[float, Trial]] = []
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
        hope = (1 - weight) * (reward.throughput + margin) + weight * steady
        if hope > index.best.reward.total:
            hopes.append((hope, trial))
    if not hopes:
        return []
    last: dict[ParallelConfig, int] = {}
    for trial in index.trials.values():
        if trial.status is not TrialStatus.CANCELLED:
            last[trial.config] = max(trial.number, last.get(trial.config, 0))
    hopes.sort(key=lambda pair: (-pair[0], pair[1].number))
    return [t for _, t in hopes if last[t.config] == t.number]
