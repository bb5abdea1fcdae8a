"""Statistics of short runs. Each one starts from a prior that is worth `PRIOR_STEPS` steps of a
healthy run.

    k, n    steps with a fault, measured steps              N     PRIOR_STEPS
    s       standard deviation of a value about its curve   s0    its prior: the value in a healthy run

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
"""weight of the prior, in steps of a healthy run"""
HEALTHY_CORRELATION = 0.99
"""prior correlation of the losses with those in fp32"""
MOST_BLOCKS = 60
"""a longer series of step times is averaged to this number of blocks before its slope is computed"""
MOST_SLOW_NOISE = 0.75
"""upper limit of the noise attributed to slow fluctuations, relative to the value"""
MOST_NOISE = 0.25
"""upper limit of the noise between steps, relative to the value; larger variation is not noise of
the data"""

Series = NDArray[np.float64]


def posterior_share(faults: float, steps: int) -> float:
    """Posterior mean of the share of steps with a fault."""
    return faults / (steps + PRIOR_STEPS)


def posterior_sd(seen: float, freedom: int, healthy: float) -> float:
    """Posterior of a standard deviation. `seen`: estimate with `freedom` degrees of freedom;
    `healthy`: prior."""
    return math.sqrt((PRIOR_STEPS * healthy**2 + freedom * seen**2) / (PRIOR_STEPS + freedom))


def posterior_correlation(a: Series, b: Series) -> float:
    """Posterior correlation of two curves with at least four values. A constant curve counts as
    uncorrelated."""
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    seen = float(a @ b) / scale if scale > 0 else 0.0
    seen = min(max(seen, -HEALTHY_CORRELATION), HEALTHY_CORRELATION)
    freedom = len(a) - 3
    z = PRIOR_STEPS * math.atanh(HEALTHY_CORRELATION) + freedom * math.atanh(seen)
    return math.tanh(z / (PRIOR_STEPS + freedom))


def part_length(n: int) -> int:
    """Length of the first and the last part of a run that are compared: a quarter of its steps, at
    least two."""
    return max(2, n // 4)


def growth(values: Series, *, healthy_noise: float) -> float:
    """Median of the last part of a series of positive values divided by that of its first part; 1
    if chance explains the growth.

    The difference of two medians of q normal values with standard deviation s has the standard
    error s * sqrt(pi / q). Its one-sided 99.5% quantile of Student's t is subtracted.
    `healthy_noise`: s0, relative to the first part. If neighboring steps are correlated, for example
    because batches follow the order of their sources, s includes the slow fluctuations about an
    exponential trend.
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
    """Step time at the end of a run divided by that in its middle, >= 1, from the median slope
    between any two steps (Theil 1950, Sen 1968), which is robust against slow outliers and quick
    first steps. It is a posterior mean whose prior is a constant step time."""
    n, middle = len(times), float(np.median(times))
    if middle <= 0:
        return 1.0
    blocks = times
    if n > MOST_BLOCKS:
        blocks = np.array([np.median(part) for part in np.array_split(times, MOST_BLOCKS)])
    i, j = np.triu_indices(len(blocks), k=1)
    slope = float(np.median((blocks[j] - blocks[i]) / (j - i)))
    growth_by_end = slope * (len(blocks) - 1) / 2 / middle
    return 1.0 + max(0.0, growth_by_end) * n / (n + PRIOR_STEPS)


def _slow_noise(values: Series) -> float:
    """Relative standard deviation about an exponential trend, enlarged for correlated steps; 0 if a
    value is not positive."""
    if (values <= 0).any():
        return 0.0
    at, logs = np.arange(len(values)) - (len(values) - 1) / 2, np.log(values)
    residuals = logs - logs.mean() - at * (at @ logs) / (at @ at)
    return math.sqrt(
        float(residuals @ residuals) / (len(values) - 2) * steps_per_independent_one(residuals)
    )


def noise_of(values: Series, healthy: float, most: float) -> float:
    """Standard deviation of a value about its curve, from second differences, which are zero for a
    straight trend (Gasser, Sroka and Jennen-Steinmetz 1986). Their median is used, so that a series
    that explodes in its last steps does not count as noise. `healthy`: prior; `most`: upper limit
    of the estimate."""
    curvature = values[2:] - 2 * values[1:-1] + values[:-2]
    seen = 1.4826 * float(np.median(np.abs(curvature))) / math.sqrt(6)
    return posterior_sd(min(seen, most), len(values) - 2, healthy)
