"""Gains of configs over a launch, with intervals.

Most errors of the cost model are shared by the configs of one job, so a ratio of step times is more
certain than either time:

    log gain        g = log t_0 - log t_i
    model errors    variance E_00 + E_ii - 2 E_0i (`autotune.cost.learn.refit`)
    constants       each is moved to both ends of its 90% interval; by how much g falls and rises there

The lower end of the interval is g minus the root of the sum of the squares of all falls; the upper
end likewise. A gain that does not depend on a constant, such as that of switching recomputation
off, has no fall from it. If the launch itself was measured, t_0 is known, and the interval is the
narrower one of this and that of the refit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Calibration
from autotune.cost.estimator import Sensitivity, one_by_one, sensitivity, step_times_by
from autotune.cost.learn.correction import errors_given, learnt, moved
from autotune.cost.learn.refit import UncertainConstants, uncertain
from autotune.cost.learn.uncertainty import Z90
from autotune.reviews.answer import Gain
from autotune.spec import ConfigTable, Estimate, ParallelConfig, Workload

Array = NDArray[np.float64]
NO_DOUBT = 1e-6
"""probability that counts as zero"""


@dataclass(frozen=True, slots=True)
class Gains:
    """Gains of n configs over the first of them, which is the launch."""

    rows: Sensitivity
    """sensitivities of all configs"""
    shifts: Array
    """changes of each log gain if each constant is at an end of its interval, shape (n, K, 2)"""
    prior: UncertainConstants
    log_step_s: float | None
    """log of the launch's measured step time in seconds; None if it was not measured"""

    def all(self) -> list[Gain]:
        """The gain of each config over the launch."""
        log_gain, fall, rise = _interval(self.rows, self.rows.take([0]), self.shifts, self.prior)
        first = self.rows.take([0])
        errors = None if self.log_step_s is None else np.array([self.log_step_s]) - first.log_step_s
        if errors is not None and (known := learnt(first, errors, self.prior)) is not None:
            center, sigma, _ = errors_given(known, self.rows)
            log_gain = errors[0] + first.log_step_s[0] - self.rows.log_step_s - center
            fall, rise = (np.minimum(each, Z90 * sigma) for each in (fall, rise))
        for each in (log_gain, fall, rise):
            each[0] = 0.0
        return [_gain(*numbers) for numbers in zip(log_gain, fall, rise, strict=True)]

    def only(self, index: int) -> Gains:
        """The entries of one config."""
        return Gains(self.rows.take([index]), self.shifts[[index]], self.prior, None)


def gains_of(
    workload: Workload, table: ConfigTable, constants: Calibration, measured_s: float | None
) -> Gains:
    """The gains of a table's configs over its first row. `measured_s`: measured seconds per step of
    that row, if any."""
    prior = uncertain(constants)
    rows = sensitivity(workload, table, constants, prior.names if measured_s is not None else ())
    log_gain = rows.log_step_s[0] - rows.log_step_s
    shifts = np.zeros((len(rows), len(prior.names) + 1, 2))
    if ends := prior.ends(Z90):
        here = prior.at(np.zeros(len(prior.names) + 1)).constants
        log_s = np.log(step_times_by(workload, table, here, one_by_one(here, ends)))
        moved = log_s[:, :1] - log_s - log_gain
        shifts[:, :-1] = moved.T.reshape(len(rows), -1, 2)
    return Gains(rows, shifts, prior, None if measured_s is None else math.log(measured_s))


def gain_between(before: Gains, after: Gains) -> Gain:
    """The gain of one config over another; both are `Gains.only` of the same launch."""
    log_gain, fall, rise = _interval(
        after.rows, before.rows, after.shifts - before.shifts, before.prior
    )
    return _gain(log_gain[0], fall[0], rise[0])


def _interval(
    rows: Sensitivity, first: Sensitivity, shifts: Array, prior: UncertainConstants
) -> tuple[Array, Array, Array]:
    """(log gains over one config, distances to the lower ends of the 90% intervals, distances to
    the upper ends)"""
    own = prior.own_error
    alone = own.alone(rows) ** 2 + own.alone(first) ** 2
    variance = (
        own.rest(rows) ** 2 + own.rest(first) ** 2 - 2.0 * own.covariance(rows, first)[:, 0] + alone
    )
    spread = Z90**2 * np.maximum(variance, 0.0)
    fall = np.sqrt(spread + (np.minimum(shifts.min(axis=2), 0.0) ** 2).sum(axis=1))
    rise = np.sqrt(spread + (np.maximum(shifts.max(axis=2), 0.0) ** 2).sum(axis=1))
    return first.log_step_s[0] - rows.log_step_s, fall, rise


def _gain(log_gain: float, fall: float, rise: float) -> Gain:
    """The gain from its logarithm and the distances to the ends of its interval."""
    log_gain = float(log_gain)
    return Gain(
        gain=math.exp(log_gain),
        low=math.exp(log_gain - float(fall)),
        high=math.exp(log_gain + float(rise)),
    )


def given_that_it_ran(predicted: Estimate, launch: Estimate) -> Estimate:
    """Estimates of configs (floats or arrays), given that the launch fits into memory.

    The error e of a predicted peak is mostly shared by the configs of one launch, so the launch
    truncates its distribution at its own distance a_0 to the limit:

        P(e > a | e <= a_0) = (P - P_0) / (1 - P_0) if P > P_0, else 0        P = P(e > a): probability of running out of memory

    If the launch was practically certain not to fit, no config fits that needs more memory. Errors
    of single configs are neglected.
    """
    risk, first = np.asarray(predicted.oom_probability, dtype=float), float(launch.oom_probability)
    if first < 1.0 - NO_DOUBT:
        given = np.clip((risk - first) / (1.0 - first), 0.0, 1.0)
    else:
        given = np.asarray(predicted.peak_memory_bytes > launch.peak_memory_bytes, dtype=float)
    return replace(predicted, oom_probability=given if given.ndim else float(given))


def corrected(
    workload: Workload,
    config: ParallelConfig,
    predicted: Estimate,
    constants: Calibration,
    measured_s: float,
) -> Estimate:
    """The estimate of a config, corrected by its measured seconds per step."""
    prior = uncertain(constants)
    row = sensitivity(workload, ConfigTable.of([config]), constants, prior.names)
    known = learnt(row, np.array([math.log(measured_s)]) - row.log_step_s, prior)
    return predicted if known is None else moved(predicted, *errors_given(known, row))
