"""What a few steps say of a config: every statistic starts from a prior that is worth `PRIOR_STEPS`
steps of a healthy run.

    k, n    steps with a fault, measured steps            N     PRIOR_STEPS
    s       standard deviation of a value about its curve  s0   the same in a healthy run, before any step

So a part of stability means the same after 5 steps and after 30: a healthy run scores 1 at any
length, one fault among 5 steps is weak evidence, and the same rate over 30 steps is strong
evidence.

    share         (k + a) / (n + a + b) with a -> 0, b = N          mean of the Beta(a + k, b + n - k) posterior
    variance      (N s0^2 + nu s^2) / (N + nu)                       scaled inverse chi-square (Gelman et al. 2013, section 2.6), nu = n - 2
    correlation   tanh of (N z0 + (n - 3) z) / (N + n - 3)           Fisher's z = atanh(r), normal of variance 1 / (n - 3)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autotune.reward.autocorrelation import steps_per_independent_one
from autotune.reward.student_t import t_quantile

PRIOR_STEPS = 10
"""steps of a healthy run that the prior is worth"""
HEALTHY_CORRELATION = 0.99
"""with the losses in fp32, before any step"""
MOST_BLOCKS = 60
"""a longer series of step times is cut into so many blocks before slopes are taken"""
MOST_SLOW_NOISE = 0.75
"""the most that slow ups and downs are held to explain, relative"""
MOST_NOISE = 0.25
"""of a step's value, relative; what varies by more is no noise of data"""

Series = NDArray[np.float64]


def posterior_share(faults: float, steps: int) -> float:
    """Share of steps with a fault."""
    return faults / (steps + PRIOR_STEPS)


def posterior_sd(seen: float, freedom: int, healthy: float) -> float:
    """A standard deviation that was `seen` with so many degrees of freedom."""
    return math.sqrt((PRIOR_STEPS * healthy**2 + freedom * seen**2) / (PRIOR_STEPS + freedom))


def posterior_correlation(a: Series, b: Series) -> float:
    """Correlation of two curves of four values or more; one that does not vary says nothing."""
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    seen = (
        min(max(float(a @ b) / scale, -HEALTHY_CORRELATION), HEALTHY_CORRELATION)
        if scale > 0
        else 0.0
    )
    freedom = len(a) - 3
    z = PRIOR_STEPS * math.atanh(HEALTHY_CORRELATION) + freedom * math.atanh(seen)
    return math.tanh(z / (PRIOR_STEPS + freedom))


def part_length(n: int) -> int:
    """Steps at the beginning, and at the end, that are compared: a quarter, but two at least."""
    return max(2, n // 4)


def growth(values: Series, *, healthy_noise: float) -> float:
    """Median of the last part of a series over that of its first part, for positive values; 1 where
    chance explains the growth.

    The difference of two medians of q normal values of standard deviation s has the standard error
    s * sqrt(pi / q). What its one-sided 99.5% quantile of Student's t explains is taken off.
    `healthy_noise`: s0, relative to the first part. Where neighbouring steps are alike (batches in
    the order of their sources), s is that of the slow ups and downs about an exponential trend.
    """
    q = part_length(len(values))
    first, last = float(np.median(values[:q])), float(np.median(values[-q:]))
    if first <= 0:
        return 1.0
    if last <= first:
        return last / first
    s = noise_of(values, healthy_noise * first, most=MOST_NOISE * first)
    s = max(s, min(_slow_noise(values), MOST_SLOW_NOISE) * first)
    chance = t_quantile(PRIOR_STEPS + len(values) - 2) * s * math.sqrt(math.pi / q)
    return max(1.0, (last - chance) / first)


def slowing(times: Series) -> float:
    """Step time at the end of a run over that in its middle, >= 1, by the median slope between any
    two steps (Theil 1950, Sen 1968), which a slow tail or quick first steps do not move. The growth
    is the mean of a posterior whose prior holds steps that do not become slower."""
    n, middle = len(times), float(np.median(times))
    blocks = (
        times
        if n <= MOST_BLOCKS
        else np.array([np.median(part) for part in np.array_split(times, MOST_BLOCKS)])
    )
    i, j = np.triu_indices(len(blocks), k=1)
    growing = (
        float(np.median((blocks[j] - blocks[i]) / (j - i))) * (len(blocks) - 1) / 2 / middle
        if middle > 0
        else 0.0
    )
    return 1.0 + max(0.0, growing) * n / (n + PRIOR_STEPS)


def _slow_noise(values: Series) -> float:
    """Relative standard deviation about an exponential trend, times the square root of how many
    neighbouring steps count as one."""
    if (values <= 0).any():
        return 0.0
    at, logs = np.arange(len(values)) - (len(values) - 1) / 2, np.log(values)
    residuals = logs - logs.mean() - at * (at @ logs) / (at @ at)
    return math.sqrt(
        float(residuals @ residuals) / (len(values) - 2) * steps_per_independent_one(residuals)
    )


def noise_of(values: Series, healthy: float, most: float) -> float:
    """Standard deviation of a value about its curve, from second differences, which a straight
    trend leaves at zero (Gasser, Sroka and Jennen-Steinmetz 1986); by their median, so that a
    series that explodes in its last steps does not pass for noise."""
    curvature = values[2:] - 2 * values[1:-1] + values[:-2]
    seen = 1.4826 * float(np.median(np.abs(curvature))) / math.sqrt(6)
    return posterior_sd(min(seen, most), len(values) - 2, healthy)
