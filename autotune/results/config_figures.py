"""The corrected speed of each config, which all tables, pages and answers show, with the step time
and the cost that follow from it.

    v      tokens/s of a measurement
    v_0    tokens/s of the baseline around the same time
    V_0    tokens/s of the baseline at the machine's first level

    figure = V_0 v / v_0

A machine's speed drifts, so measurements of different hours are compared by their ratios to the
baseline, v / v_0:

- A config of the finals has the pooled ratio of its final rounds. Its measurement in the search is
  left out: the config was selected by it, and the best of many measurements is too high on average
  (the winner's curse).
- Any other config has the ratio of its one measurement.

So the winner's tokens/s are always the baseline's times the speedup.

v_0 in the search is V_0: the trials passed to this module are already corrected to the machine's
first level (`autotune.reward.machine_level`). So the figure of a config that ran once changes only
if the machine's level did.

v_0 in the final rounds is V_0 times the gain of the baseline's median speed (geometric mean over
its runs) from the search to the finals; V_0 is the baseline's pooled final rounds without that
gain. For one final run, v_0 follows from the median speed of the baseline's run in the same round,
or in the round before if that run was cancelled or failed. Medians, because one slow step of the
baseline's few would shift all configs of that round.

The peak memory of a config is the highest of all its runs, and each trial of the search shows it.

Without a measured baseline, measurements are shown unchanged. The store always has the values as
measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.reward import moved, slowed, tokens_per_s
from autotune.spec import Measurement, ParallelConfig, Trial, TrialPurpose
from autotune.spec.runs.measurement import at_highest_peak
from autotune.study.controller import Winner
from autotune.study.controller.finals.rounds import (
    at_start,
    baseline_of,
    ended_finals,
    joined,
    measured_finals,
)

ROUNDING = 1e-9
"""relative difference of two speeds that floating-point rounding may cause"""


def with_figures(
    winner: Winner, trials: Sequence[Trial], stability_weight: float
) -> tuple[Winner, tuple[Trial, ...]]:
    """Return the winner and all trials, each measurement corrected to its config's figure. The
    first trial of a re-measured config has the pooled measurement of the finals; a final trial has
    the figure of its round. `stability_weight`: of the study's objective."""
    pooled = {t.number: t for t in winner.confirmed}
    baseline = (
        winner.baseline
        if winner.baseline is not None and winner.baseline.number in pooled
        else None
    )
    at_first = winner
    if baseline is not None:
        baseline = at_start(baseline, trials)
        at_first = replace(winner, baseline=baseline)
    shown = dict[int, Trial]()
    for t in trials:
        if (
            baseline is None
            or t.number in pooled
            or t.purpose is TrialPurpose.FINAL
            or not t.is_measured
        ):
            shown[t.number] = _at_figure(t, pooled.get(t.number, t), at_first, trials)
        elif t.config == baseline.config:
            shown[t.number] = _slowed(t, tokens_per_s(t) / tokens_per_s(baseline))
        else:
            shown[t.number] = _relative_to(baseline, t, stability_weight)
    shown = _at_highest_peaks(shown)
    return (
        replace(
            winner,
            best=shown[winner.best.number] if winner.best is not None else None,
            baseline=shown[winner.baseline.number] if winner.baseline is not None else None,
            confirmed=tuple(shown[t.number] for t in winner.confirmed),
        ),
        tuple(shown.values()),
    )


def _at_highest_peaks(shown: Mapping[int, Trial]) -> dict[int, Trial]:
    """Return the trials, each with the highest peak memory of its config's runs. Final trials are
    unchanged."""
    runs = defaultdict[ParallelConfig, list[Measurement]](list)
    for t in shown.values():
        if t.measured is not None:
            runs[t.config].append(t.measured)
    return {
        t.number: replace(t, measurement=at_highest_peak(t.measurement, runs[t.config]))
        if t.measurement is not None and t.purpose is not TrialPurpose.FINAL
        else t
        for t in shown.values()
    }


def _baseline_speed(trial: Trial, trials: Sequence[Trial], at_first_level: Trial) -> float | None:
    """Return v_0: tokens/s of the baseline around the time of this measurement; None if it was not
    measured. `at_first_level`: the baseline, with speed V_0.

    For a final trial: in the same round, or in the last one before it in which the baseline was
    measured. For any other trial, including pooled ones: the speed that its reward is relative to.
    """
    baseline = baseline_of(trials)
    if baseline is None:
        return None
    if trial.purpose is TrialPurpose.FINAL:
        finals = ended_finals(trials)
        runs, baseline_runs = (
            measured_finals(config, finals) for config in (trial.config, baseline.config)
        )
        index = next((i for i, t in enumerate(runs) if t.number == trial.number), None)
        if not baseline_runs or index is None:
            return None
        index += joined(trial.config, finals, baseline)
        return (
            tokens_per_s(at_first_level)
            * _median_speed(baseline_runs[min(index, len(baseline_runs) - 1)])
            / _median_speed(at_first_level)
        )
    ratio = trial.reward.parts.get("tokens_per_s_ratio") if trial.reward is not None else None
    return tokens_per_s(trial) / ratio if ratio else tokens_per_s(baseline)


def _median_speed(trial: Trial) -> float:
    """Return the trial's median tokens/s; NaN without a measurement."""
    return trial.measurement.median_tokens_per_s if trial.measurement is not None else math.nan


def _at_figure(first: Trial, trial: Trial, winner: Winner, trials: Sequence[Trial]) -> Trial:
    """Return the trial corrected to its config's figure. `first`: the config's trial in the search;
    `trial`: the same one, or with the pooled measurement of the finals."""
    baseline = winner.baseline
    if baseline is None or not trial.is_measured:
        return trial
    in_finals = any(t.number == baseline.number for t in winner.confirmed)
    source = trial if in_finals else first
    baseline_speed = _baseline_speed(source, trials, baseline)
    if not baseline_speed:
        return trial
    return _slowed(
        trial, tokens_per_s(trial) / tokens_per_s(source) * baseline_speed / tokens_per_s(baseline)
    )


def _relative_to(baseline: Trial, trial: Trial, stability_weight: float) -> Trial:
    """Return a trial of the search with its reward relative to the baseline's corrected speed."""
    ratio = trial.reward.parts.get("tokens_per_s_ratio") if trial.reward is not None else None
    if trial.reward is None or not ratio:
        return trial
    log_change = math.log(tokens_per_s(trial) / tokens_per_s(baseline) / ratio)
    return replace(trial, reward=moved(trial.reward, log_change, stability_weight))


def _slowed(trial: Trial, factor: float) -> Trial:
    """Return the trial with its step times multiplied by the factor."""
    if trial.measurement is None or not factor > 0 or abs(factor - 1.0) < ROUNDING:
        return trial
    return replace(trial, measurement=slowed(trial.measurement, factor))
