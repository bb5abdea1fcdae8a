"""The figure of a config: the one speed that every table, page and answer shows of it, with the
step time and the cost that follow from it.

    v      tokens/s of a measurement              v_0    tokens/s of the baseline around the same time
    V_0    tokens/s of the baseline at the machine's first level

    figure = V_0 v / v_0

Of the search v_0 is V_0: its trials come here as they would have been at the machine's first level
(`autotune.reward.machine_level`), so a config that ran once has the figure that it was first shown
with, unless the machine changed meanwhile. v_0 of the final rounds is V_0 times what the baseline's
median speeds (mean of the logarithms of its runs) gained from the search to the finals, and V_0 is
the baseline's pooled final rounds without that gain. v_0 of one final run follows from the median
speed of the baseline's run in its round; where that run was cancelled or failed, from the round
before. By medians, because one slow step among the few of a run of the baseline would move all
configs of the same time against the others.

A machine does not stay as fast as it is, so measurements of different hours are compared by their
ratios to the baseline. A config that took part in the finals has the ratio of its final rounds,
pooled. The search's measurement is left out of it: it is what the config was chosen by, and the
best of many measurements is too good on average (the winner's curse). Any other config has the
ratio of its one measurement. So the winner's tokens/s are the default config's times the speedup,
wherever they stand.

The peak memory of a config is the highest of all its runs, so each trial of the search shows that.

Without a measured baseline nothing can be related, and measurements stand as they are. The store
keeps what was measured.
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

SAME = 1e-9
"""relative difference of two speeds that is rounding"""


def with_figures(
    winner: Winner, trials: Sequence[Trial], stability_weight: float
) -> tuple[Winner, tuple[Trial, ...]]:
    """The winner and all trials, each measurement moved to its config's figure. The first trial of
    a config that was re-measured holds what the finals measured; a final trial has the figure of
    its own round. `stability_weight`: of the study's objective."""
    again = {t.number: t for t in winner.confirmed}
    default = (
        winner.baseline if winner.baseline is not None and winner.baseline.number in again else None
    )
    at_first = winner
    if default is not None:
        default = at_start(default, trials)
        at_first = replace(winner, baseline=default)
    shown = dict[int, Trial]()
    for t in trials:
        if (
            default is None
            or t.number in again
            or t.purpose is TrialPurpose.FINAL
            or not t.is_measured
        ):
            shown[t.number] = _at_figure(t, again.get(t.number, t), at_first, trials)
        elif t.config == default.config:
            shown[t.number] = _slowed(t, tokens_per_s(t) / tokens_per_s(default))
        else:
            shown[t.number] = _relative_to(default, t, stability_weight)
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
    """The trials, each with the highest peak memory of its config's runs. Finals keep their own peak."""
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


def _default_speed(trial: Trial, trials: Sequence[Trial], figure: Trial) -> float | None:
    """v_0: tokens per second of the baseline around the time of this measurement; None where it was
    not measured. `figure`: the baseline at V_0.

    Of a final trial: in the same round, or in the last one before it in which the baseline was
    measured. Of any other, pooled ones included: what its reward is relative to.
    """
    default = baseline_of(trials)
    if default is None:
        return None
    if trial.purpose is TrialPurpose.FINAL:
        finals = ended_finals(trials)
        mine, theirs = (
            measured_finals(config, finals) for config in (trial.config, default.config)
        )
        now = next((i for i, t in enumerate(mine) if t.number == trial.number), None)
        if not theirs or now is None:
            return None
        now += joined(trial.config, finals, default)
        return (
            tokens_per_s(figure)
            * _median_speed(theirs[min(now, len(theirs) - 1)])
            / _median_speed(figure)
        )
    ratio = trial.reward.parts.get("tokens_per_s_ratio") if trial.reward is not None else None
    return tokens_per_s(trial) / ratio if ratio else tokens_per_s(default)


def _median_speed(trial: Trial) -> float:
    return trial.measurement.median_tokens_per_s if trial.measurement is not None else math.nan


def _at_figure(first: Trial, trial: Trial, winner: Winner, trials: Sequence[Trial]) -> Trial:
    """`trial` (`first`, or what the finals measured for it) at its config's figure."""
    default = winner.baseline
    if default is None or not trial.is_measured:
        return trial
    in_race = any(t.number == default.number for t in winner.confirmed)
    source = trial if in_race else first
    at_the_time = _default_speed(source, trials, default)
    if not at_the_time:
        return trial
    return _slowed(
        trial, tokens_per_s(trial) / tokens_per_s(source) * at_the_time / tokens_per_s(default)
    )


def _relative_to(default: Trial, trial: Trial, stability_weight: float) -> Trial:
    """A trial of the search with the reward that belongs to its speed relative to the baseline's
    figure."""
    ratio = trial.reward.parts.get("tokens_per_s_ratio") if trial.reward is not None else None
    if trial.reward is None or not ratio:
        return trial
    more = math.log(tokens_per_s(trial) / tokens_per_s(default) / ratio)
    return replace(trial, reward=moved(trial.reward, more, stability_weight))


def _slowed(trial: Trial, factor: float) -> Trial:
    """The trial with all times of its steps multiplied."""
    if trial.measurement is None or not factor > 0 or abs(factor - 1.0) < SAME:
        return trial
    return replace(trial, measurement=slowed(trial.measurement, factor))
