"""How much faster configs are than a launch, with intervals.

Errors of the cost model are mostly shared by the configs of one job, so a ratio is known better than either time:

    log gain = log t_0 - log t_i        variance = C_00 + C_ii - 2 C_0i + a_0^2 + a_i^2        C = J S J' + E   (`autotune.cost.refit`)

Where the launch itself was measured, C is what that measurement leaves of it, and t_0 is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.cost import Calibration
from autotune.cost.correction import errors_given, learnt, moved
from autotune.cost.refit import Array, uncertain
from autotune.cost.sensitivity import sensitivity
from autotune.cost.uncertainty import Z90
from autotune.review.answer import Gain
from autotune.spec import ConfigTable, Estimate, Workload


@dataclass(frozen=True, slots=True)
class Gains:
    """Of n configs over the first of them."""

    log_gain: Array
    """medians, shape (n,)"""
    sigma: Array
    """standard deviations of the logs, shape (n,)"""

    def of(self, index: int) -> Gain:
        """The gain of one config."""
        log_gain, reach = float(self.log_gain[index]), Z90 * float(self.sigma[index])
        return Gain(gain=math.exp(log_gain), low=math.exp(log_gain - reach), high=math.exp(log_gain + reach))


def gains_of(workload: Workload, table: ConfigTable, constants: Calibration, measured_s: float | None) -> Gains:
    """Of the configs of a table over its first row; `measured_s`: step time of that row, where it is known."""
    prior = uncertain(constants)
    rows = sensitivity(workload, table, constants, prior.names)
    first, own = rows.take([0]), prior.own_error
    alone = own.alone(rows) ** 2
    shared = rows.jacobian @ prior.covariance @ first.jacobian.T + own.covariance(rows, first)
    each = np.einsum("nk,kl,nl->n", rows.jacobian, prior.covariance, rows.jacobian) + own.rest(rows) ** 2
    variance = each + each[0] - 2.0 * shared[:, 0] + alone + alone[0]
    log_gain = rows.log_step_s[0] - rows.log_step_s
    known = None if measured_s is None else learnt(first, np.array([math.log(measured_s)]) - first.log_step_s, prior)
    if known is not None and measured_s is not None:
        center, sigma, _ = errors_given(known, rows)
        log_gain = math.log(measured_s) - rows.log_step_s - center
        variance = np.minimum(variance, sigma**2)  # a measurement does not make a ratio less sure
    sigma = np.sqrt(np.maximum(variance, 0.0))
    log_gain[0], sigma[0] = 0.0, 0.0
    return Gains(log_gain, sigma)


def corrected(
    workload: Workload, table: ConfigTable, predicted: Estimate, constants: Calibration, measured_s: float
) -> Estimate:
    """The estimates given a measured step time of the first config of the table."""
    prior = uncertain(constants)
    rows = sensitivity(workload, table, constants, prior.names)
    first = rows.take([0])
    known = learnt(first, np.array([math.log(measured_s)]) - first.log_step_s, prior)
    return predicted if known is None else moved(predicted, *errors_given(known, rows))
