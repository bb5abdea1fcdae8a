"""Observations of a latent quantity g, approximated by Gaussians so that a Gaussian process can be
conditioned on them.

A *value* is g plus noise. A *censored* observation only shows on which side of a limit t the
quantity is: a config that ran out of memory needed more than t, one that ran needed less. Its
likelihood Phi(s (g - t) / tau) is log-concave, and the Laplace approximation replaces it by a
Gaussian at the mode (Rasmussen & Williams 2006, section 3.4.1 and eq. 3.16).

Some values are outliers, for example because of a slow node, other network traffic or a memory
leak. So the likelihood of a value is a mixture (contaminated normal, Tukey 1960): with a small
probability its log has a much larger spread, and a single extreme step time does not outweigh all
others.

    y, t   value or limit, shape (n,)        s   0 for a value, +1 above the limit, -1 below it
    noise  standard deviation of the value, or the width tau of the limit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

Array = NDArray[np.float64]
OUTLIER_RATE = 0.03
"""prior share of outliers: about the share of repeats in published sweeps that differ by more than
half"""
OUTLIER_SD = 1.0
"""standard deviation of the log time or memory of an outlier"""
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """n observations."""

    values: Array
    """y or t, shape (n,)"""
    sides: Array
    """0, +1 or -1, shape (n,)"""
    noise: Array
    """standard deviations, shape (n,)"""

    def gaussians(self, g: Array, outlier: Array) -> tuple[Array, Array]:
        """Means and variances, shape (n,) each, of the Gaussians with the likelihood's slope and
        curvature at g, shape (n,).

        `outlier`: probability that each value is an outlier, shape (n,). A value's precision is the
        expected one.
        """
        u = self.sides * (g - self.values) / self.noise
        # ratio of normal density to distribution function, in logs against underflow
        ratio = np.exp(-0.5 * u * u - _LOG_SQRT_2PI - log_ndtr(u))
        curvature = np.maximum(ratio * (u + ratio), 1e-8) / self.noise**2
        targets = g + self.sides * ratio / self.noise / curvature
        is_value = self.sides == 0
        variance = self.noise**2
        precision = (1.0 - outlier) / variance + outlier / (variance + OUTLIER_SD**2)
        return (
            np.where(is_value, self.values, targets),
            np.where(is_value, 1.0 / precision, 1.0 / curvature),
        )

    def outlier_probability(self, mean: Array, variance: Array) -> Array:
        """Probability that each value is an outlier, shape (n,). `mean`, `variance`: of g at each
        observation, given all others."""
        clean, other = self._log_densities(mean, variance)
        return np.where(self.sides == 0, expit(other - clean), 0.0)

    def log_predictive(self, mean: Array, variance: Array) -> float:
        """Sum of the log probabilities of the observations. `mean`, `variance`: of g at each
        observation, given all others."""
        clean, other = self._log_densities(mean, variance)
        censored = log_ndtr(self.sides * (mean - self.values) / np.sqrt(variance + self.noise**2))
        return float(np.where(self.sides == 0, np.logaddexp(clean, other), censored).sum())

    def _log_densities(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """log P(no outlier) p(y | no outlier) and log P(outlier) p(y | outlier), shape (n,) each."""

        def log_density(total: Array) -> Array:
            return np.asarray(
                -0.5 * (self.values - mean) ** 2 / total - 0.5 * np.log(total) - _LOG_SQRT_2PI
            )

        plain = variance + self.noise**2
        return (
            np.log1p(-OUTLIER_RATE) + log_density(plain),
            np.log(OUTLIER_RATE) + log_density(plain + OUTLIER_SD**2),
        )

    def with_values(self, values: Array, noise: float) -> Observations:
        """These observations followed by `values`, shape (m,), with standard deviation `noise`."""
        return Observations(
            values=np.concatenate([self.values, values]),
            sides=np.concatenate([self.sides, np.zeros(len(values))]),
            noise=np.concatenate([self.noise, np.full(len(values), noise)]),
        )

    def take(self, index: Any) -> Observations:
        """The observations selected by `index` (integers, a slice or a mask)."""
        return Observations(
            values=self.values[index], sides=self.sides[index], noise=self.noise[index]
        )

    def __len__(self) -> int:
        return len(self.values)
