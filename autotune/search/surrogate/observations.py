"""Observations of a latent quantity g, as Gaussians that a Gaussian process can be conditioned on.

A *value* says g = y + noise. A *limit* says only on which side of t the quantity was seen: a config that ran out of memory needed
more than there is, one that ran needed less. Its likelihood Phi(s (g - t) / tau) is log-concave, and the Laplace approximation
replaces it by a Gaussian at the mode (Rasmussen & Williams 2006, section 3.4.1 and eq. 3.16).

Some runs are disturbed: a slow node, a neighbour's traffic, a leak. A value is a mixture (contaminated normal, Tukey 1960): with
a small probability its log has a far larger spread, so that one absurd step time does not undo what all others say.

    y, t   value or limit, shape (n,)        s   0 value, +1 above the limit, -1 below it
    noise  standard deviation of the value, or the width tau of the limit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

Array = NDArray[np.float64]
DISTURBED = 0.03
"""share of trials that are disturbed: repeats in the published sweeps differ by more than half about that often"""
DISTURBANCE_SD = 1.0
"""standard deviation of log time or memory of a disturbed one"""
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

    def gaussians(self, g: Array, disturbed: Array) -> tuple[Array, Array]:
        """Targets and variances, shape (n,), of the Gaussians that match the likelihood's slope and curvature at g, shape (n,).

        A value that is `disturbed` with some probability, shape (n,), counts by its expected precision.
        """
        u = self.sides * (g - self.values) / self.noise
        # the ratio of normal density to distribution function, without underflow far below the limit
        ratio = np.exp(-0.5 * u * u - _LOG_SQRT_2PI - log_ndtr(u))
        curvature = np.maximum(ratio * (u + ratio), 1e-8) / self.noise**2
        targets = g + self.sides * ratio / self.noise / curvature
        is_value = self.sides == 0
        variance = self.noise**2
        precision = (1.0 - disturbed) / variance + disturbed / (variance + DISTURBANCE_SD**2)
        return (
            np.where(is_value, self.values, targets),
            np.where(is_value, 1.0 / precision, 1.0 / curvature),
        )

    def disturbed(self, mean: Array, variance: Array) -> Array:
        """Probability that each value was disturbed, given what all others say of g there: mean and variance, shape (n,)."""
        clean, other = self._log_densities(mean, variance)
        return np.where(self.sides == 0, expit(other - clean), 0.0)

    def log_predictive(self, mean: Array, variance: Array) -> float:
        """Log probability of the observations, each under what all others say of g there."""
        clean, other = self._log_densities(mean, variance)
        seen = log_ndtr(self.sides * (mean - self.values) / np.sqrt(variance + self.noise**2))
        return float(np.where(self.sides == 0, np.logaddexp(clean, other), seen).sum())

    def _log_densities(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Log of P(clean) p(y | clean) and of P(disturbed) p(y | disturbed), shape (n,) each."""

        def log_density(total: Array) -> Array:
            return np.asarray(-0.5 * (self.values - mean) ** 2 / total - 0.5 * np.log(total) - _LOG_SQRT_2PI)

        plain = variance + self.noise**2
        return (
            np.log1p(-DISTURBED) + log_density(plain),
            np.log(DISTURBED) + log_density(plain + DISTURBANCE_SD**2),
        )

    def and_values(self, values: Array, noise: float) -> Observations:
        """These and `values`, shape (m,), with that noise."""
        return Observations(
            values=np.concatenate([self.values, values]),
            sides=np.concatenate([self.sides, np.zeros(len(values))]),
            noise=np.concatenate([self.noise, np.full(len(values), noise)]),
        )

    def take(self, index: Any) -> Observations:
        """Those that `index` (integers, a slice or a mask) names."""
        return Observations(values=self.values[index], sides=self.sides[index], noise=self.noise[index])

    def __len__(self) -> int:
        return len(self.values)
