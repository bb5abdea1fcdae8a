"""Correction: estimates of a study's configs given the trials that it has measured.

Prediction and interval of a config follow from the trials in three ways. Constants and level, which all configs share, are refitted (`refit`), and each config
moves by its own mix of causes. Own errors are shared by neighbours (`own_error`). Both are one linear step about the constants that the study began with.
How wide all of these errors are is the study's own too (`error_scale`). Trials whose sends stalled are set aside (`stalled_trials`).

    step time    predicted * exp(mean of log(measured / predicted))
    interval     that of Student's t about the same
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import final

import numpy as np

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.error_scale import widening
from autotune.cost.guarded_refit import WIDE, left_out_score
from autotune.cost.refit import LEAST_SIGMA, Array, Conditioned, UncertainConstants, uncertain
from autotune.cost.sensitivity import Sensitivity, sensitivity
from autotune.cost.stalled_trials import unstalled
from autotune.cost.uncertainty import config_sigma, interval, upper_end
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, Estimate, ParallelConfig, TimeParts, Trial

ENOUGH = 64
"""configs after which further ones are not looked at: by then constants are known far better than any config's own error"""
MARGIN = 2.0
"""difference of the left-out scores that the wider prior must gain: its evidence is seven times as large. With less it takes what `error_scale` explains better"""


@final
class Correction:
    """What a study's trials say about its other configs. What was computed for a config is kept; the result depends on the arguments alone."""

    def __init__(self, space: SearchSpace, constants: Calibration | None = None) -> None:
        """`constants`: of the estimates; default: `calibration_for` the workload."""
        self._space = space
        self._prior = uncertain(constants or calibration_for(space.workload))
        self._rows: dict[ParallelConfig, Sensitivity] = {}

    def applied(self, config: ParallelConfig, estimate: Estimate, trials: Iterable[Trial]) -> Estimate:
        """The estimate of one config given these trials; unchanged where none was measured, or the sends of all stalled. Repeats of a config count once."""
        seen: dict[ParallelConfig, list[float]] = {}
        for trial in trials:
            if trial.is_measured and trial.measurement is not None:
                seen.setdefault(trial.config, []).append(math.log(trial.measurement.step_time_s))
                if len(seen) == ENOUGH:
                    break
        if not seen:
            return estimate
        rows = Sensitivity.joined([self._row(known) for known in seen])
        errors = np.array([float(np.median(logs)) for logs in seen.values()]) - rows.log_step_s
        known = learnt(rows, errors, self._prior)
        return estimate if known is None else moved(estimate, *errors_given(known, self._row(config)))

    def _row(self, config: ParallelConfig) -> Sensitivity:
        if config not in self._rows:
            found = sensitivity(
                self._space.workload, ConfigTable.of([config]), self._prior.constants, self._prior.names
            )
            self._rows[config] = replace(found, points=self._space.coordinates_of(config))
        return self._rows[config]


def learnt(rows: Sensitivity, errors: Array, prior: UncertainConstants) -> Conditioned | None:
    """What the trials `rows` say whose log(measured / predicted) are `errors`, shape (n,), by the prior or the wider one; None where the sends of all stalled."""
    ran = unstalled(rows, errors, prior)
    if not len(ran):
        return None
    wider = replace(prior, covariance=WIDE**2 * prior.covariance)
    known, wide = (Conditioned.on(rows.take(ran), errors[ran], some) for some in (prior, wider))
    return wide if left_out_score(wide) > left_out_score(known) + MARGIN else known


def errors_given(known: Conditioned, rows: Sensitivity) -> tuple[Array, Array, Array]:
    """Of the next measurements of configs: mean of log(measured / predicted), the standard deviation of the normal with the same 90% interval, and the part of it
    that is due to constants and level; shape (N,) each."""
    center, sigma, shared = known.errors_of(rows)
    wider = widening(known.squares, len(known.rows))
    sigma = np.maximum(wider * sigma, LEAST_SIGMA)
    return center, sigma, np.minimum(wider * shared, sigma)


def moved(estimate: Estimate, center: np.ndarray, sigma: np.ndarray, shared: np.ndarray) -> Estimate:
    """The estimate with its times multiplied by exp(`center`); `sigma`: standard deviation of the log step time, of which `shared` is due to constants and
    level; each of shape (N,), or (1,) for one config."""
    alone = not np.ndim(estimate.step_time_s)
    factor = np.exp(center)
    step = np.asarray(estimate.step_time_s) * factor
    low, _ = interval(step, sigma)
    chance = np.atleast_1d(estimate.stall_probability)
    stalled = step + np.maximum(np.asarray(estimate.stalled_step_time_s) - np.asarray(estimate.step_time_s), 0.0)
    high = upper_end(*np.broadcast_arrays(np.atleast_1d(step), sigma, stalled, chance))
    parts = {name: np.asarray(value) * factor for name, value in estimate.time_parts_s.to_dict().items()}
    whole = replace(
        estimate,
        step_time_s=step,
        step_time_low_s=low,
        step_time_high_s=high,
        time_parts_s=TimeParts(**parts),
        tokens_per_s=np.asarray(estimate.tokens_per_s) / factor,
        tokens_per_s_per_gpu=np.asarray(estimate.tokens_per_s_per_gpu) / factor,
        mfu=np.asarray(estimate.mfu) / factor,
        level=np.asarray(estimate.level) * factor,
        level_sigma=shared,
        stalled_step_time_s=stalled,
    )
    return whole.row(0) if alone else whole


def after_one_trial(estimate: Estimate) -> float:
    """Half-width of one config's 90% interval once its neighbour on one knob has run as far off as expected, as a fraction of the step time."""
    alike = uncertain(Calibration()).own_error
    own, level = float(config_sigma(estimate)) ** 2, float(estimate.level_sigma) ** 2
    together = level + max(own - alike.alone_sigma**2, 0.0) * math.exp(-1.0 / alike.length)
    left = own + level - together**2 / (own + level + LEAST_SIGMA**2)
    _, high = interval(np.ones(1), widening(1.0, 1) * math.sqrt(left))
    return float(high[0]) - 1.0
