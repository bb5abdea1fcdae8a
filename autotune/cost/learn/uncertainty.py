"""Error bars: intervals of time and memory, and the probability that a config runs out of memory.
Errors are log-normal."""

from __future__ import annotations

import math

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column
from autotune.spec import Estimate, MemoryParts, ModelSpec, TimeParts

Z90 = 1.6448536269514722
"""half-width of the central 90% of a standard normal"""
TAIL = 0.05
"""probability that the upper end of an interval is exceeded"""
BISECTIONS = 10
OTHER_LAYERS_TIME = 0.5
"""additional standard deviation of ln step time for models with other layers than a decoder's;
assumed, because there are no published runs: kernels of state-space and linear layers achieve 50%
to 100% of the rate of matmuls"""
OTHER_LAYERS_MEMORY = 0.5
"""standard deviation of ln activations of such layers; assumed: dry runs scatter by 0.3 about
`activations.OTHER_LAYERS_KEPT`, and GPU kernels keep less than torch's own code"""


def moving_share(times: TimeParts) -> Column:
    """Return the share of the step that is communication or bubble."""
    moving = (
        times.tp_comm + times.pp_comm + times.dp_comm + times.cp_comm + times.ep_comm + times.bubble
    )
    return np.asarray(moving / times.total)


def time_sigma(times: TimeParts, constants: Calibration, model: ModelSpec) -> Column:
    """Return the standard deviation of a config's own error of ln step time: `time_sigma`,
    `comm_sigma` for the share of communication and bubbles, `expert_sigma` for a model with
    experts, and `OTHER_LAYERS_TIME` for a model with other layers than a decoder's."""
    plain = np.hypot(constants.time_sigma, constants.comm_sigma * moving_share(times))
    other = OTHER_LAYERS_TIME if model.code is not None and model.code.layers else 0.0
    return np.asarray(
        np.hypot(plain, np.hypot(constants.expert_sigma if model.num_experts else 0.0, other))
    )


def memory_sigma(memory: MemoryParts, constants: Calibration, model: ModelSpec) -> Column:
    """Return the standard deviation of the error of ln peak memory: `memory_sigma`, and
    `OTHER_LAYERS_MEMORY` for the share of activations of a model with other layers than a
    decoder's, whose weights are known exactly."""
    share = np.asarray(memory.activations / memory.total)
    other = OTHER_LAYERS_MEMORY if model.code is not None and model.code.layers else 0.0
    return np.asarray(np.hypot(constants.memory_sigma, other * share))


def interval(center: Column, sigma: Column | float) -> tuple[Column, Column]:
    """Return the ends of the 90% interval of a log-normal quantity with median `center`."""
    reach = np.exp(Z90 * np.asarray(sigma))
    return center / reach, center * reach


def upper_end(center: Column, sigma: Column, stalled: Column, chance: Column) -> Column:
    """Return the upper end of the 90% interval of a time with median `center`, or `stalled` with
    probability `chance`: 5% exceed it. Found by bisection, to a thousandth of the distance between
    the upper ends of both."""
    high = interval(center, sigma)[1]
    rows = np.flatnonzero(chance > 0)
    if len(rows):
        at, stall, own = (
            np.broadcast_to(column, high.shape)[rows]
            for column in (center, stalled, np.maximum(sigma, 1e-9))
        )
        low_log, high_log = np.log(high[rows]), np.log(interval(stall, own)[1])
        places, shares = (np.log(at), np.log(stall)), (1.0 - chance[rows], chance[rows])
        for _ in range(BISECTIONS):
            middle = 0.5 * (low_log + high_log)
            plain, waiting = (normal_cdf((place - middle) / own) for place in places)
            above = shares[0] * plain + shares[1] * waiting > TAIL
            low_log, high_log = np.where(above, middle, low_log), np.where(above, high_log, middle)
        high[rows] = np.exp(high_log)
    return high


def config_sigma(estimate: Estimate) -> Column:
    """Return the standard deviation of each config's own error of ln step time, shape (N,): from
    the lower half of its interval, without the error shared by all configs
    (`Estimate.level_sigma`). The upper half may include stalls."""
    width = np.log(np.asarray(estimate.step_time_s) / np.asarray(estimate.step_time_low_s)) / Z90
    return np.asarray(np.sqrt(np.maximum(width**2 - np.asarray(estimate.level_sigma) ** 2, 0.0)))


def memory_log_sigma(estimate: Estimate) -> Column:
    """Return the standard deviation of each config's ln peak memory, shape (N,): from the lower
    half of its interval, because the upper end may be limited to the GPU's memory."""
    return np.asarray(
        np.log(np.asarray(estimate.peak_memory_bytes) / np.asarray(estimate.peak_memory_low_bytes))
        / Z90
    )


def exceeds(center: Column, limit: float, sigma: Column | float) -> Column:
    """Return the probability that a log-normal quantity with median `center` exceeds `limit`."""
    z = (np.log(np.maximum(center, 1e-300)) - math.log(limit)) / np.maximum(sigma, 1e-9)
    return normal_cdf(z)


def normal_cdf(z: Column) -> Column:
    """Return the standard normal distribution function, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    a = np.abs(z)
    t = 1.0 / (1.0 + 0.2316419 * a)
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-0.5 * np.minimum(a, 40.0) ** 2) / math.sqrt(2 * math.pi) * poly
    return np.where(z >= 0, 1.0 - tail, tail)
