"""How much faster configs are than a launch, with intervals.

Errors of the cost model are mostly shared by the configs of one job, so a ratio is known better than either time:

    log gain    g = log t_0 - log t_i
    own errors  variance E_00 + E_ii - 2 E_0i (`autotune.cost.own_error`)
    constants   each is moved to both ends of its 90% interval; by how much g falls and rises there

The lower end of the interval is g less the root of the sum of the squares of all falls, the upper end likewise: a gain that no constant can undo, as that of
not recomputing, has none. Where the launch itself was measured, t_0 is known, and the interval is the narrower one of this and that of the refit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Calibration
from autotune.cost.correction import errors_given, learnt, moved
from autotune.cost.refit import uncertain
from autotune.cost.sensitivity import sensitivity, step_times
from autotune.cost.uncertainty import Z90
from autotune.reviews.answer import Gain
from autotune.spec import ConfigTable, Estimate, ParallelConfig, Workload

Array = NDArray[np.float64]
NEGLIGIBLE = 0.01
"""standard deviation of a log gain by one constant below which it is left out"""


@dataclass(frozen=True, slots=True)
class Gains:
    """Of n configs over the first of them."""

    log_gain: Array
    """medians, shape (n,)"""
    fall: Array
    """how far below them the logs of the lower ends of the 90% intervals are, shape (n,)"""
    rise: Array
    """how far above, shape (n,)"""

    def of(self, index: int) -> Gain:
        """The gain of one config."""
        log_gain = float(self.log_gain[index])
        low, high = log_gain - float(self.fall[index]), log_gain + float(self.rise[index])
        return Gain(gain=math.exp(log_gain), low=math.exp(low), high=math.exp(high))


def gains_of(workload: Workload, table: ConfigTable, constants: Calibration, measured_s: float | None) -> Gains:
    """Of the configs of a table over its first row; `measured_s`: step time of that row, where it is known."""
    prior = uncertain(constants)
    rows = sensitivity(workload, table, constants, prior.names)
    first, own = rows.take([0]), prior.own_error
    log_gain = rows.log_step_s[0] - rows.log_step_s
    alone = own.alone(rows) ** 2
    variance = own.rest(rows) ** 2 + own.rest(first) ** 2 - 2.0 * own.covariance(rows, first)[:, 0] + alone + alone[0]
    fall = rise = Z90**2 * np.maximum(variance, 0.0)
    times = step_times(workload, table)
    sigmas = np.sqrt(np.diag(prior.covariance))
    matters = np.abs(rows.jacobian - rows.jacobian[0]).max(axis=0) * sigmas > NEGLIGIBLE
    for k in np.flatnonzero(matters[:-1]):
        apart = []
        for reach in (-Z90 * sigmas[k], Z90 * sigmas[k]):
            moved_by = np.zeros(len(sigmas))
            moved_by[k] = reach
            log_s = np.log(times(prior.at(moved_by).constants).total)
            apart.append(log_s[0] - log_s - log_gain)
        fall = fall + np.minimum(np.minimum(*apart), 0.0) ** 2
        rise = rise + np.maximum(np.maximum(*apart), 0.0) ** 2
    fall, rise = np.sqrt(fall), np.sqrt(rise)
    known = None if measured_s is None else learnt(first, np.array([math.log(measured_s)]) - first.log_step_s, prior)
    if known is not None and measured_s is not None:
        center, sigma, _ = errors_given(known, rows)
        log_gain = math.log(measured_s) - rows.log_step_s - center
        fall, rise = (np.minimum(each, Z90 * sigma) for each in (fall, rise))
    for each in (log_gain, fall, rise):
        each[0] = 0.0
    return Gains(log_gain, fall, rise)


def corrected(
    workload: Workload, config: ParallelConfig, predicted: Estimate, constants: Calibration, measured_s: float
) -> Estimate:
    """The estimate of a config given a measured step time of it."""
    prior = uncertain(constants)
    row = sensitivity(workload, ConfigTable.of([config]), constants, prior.names)
    known = learnt(row, np.array([math.log(measured_s)]) - row.log_step_s, prior)
    return predicted if known is None else moved(predicted, *errors_given(known, row))
