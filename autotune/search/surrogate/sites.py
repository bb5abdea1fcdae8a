"""Observations of a latent quantity g, as Gaussians that a Gaussian process can be conditioned on.

A *value* says g = y + noise. A *limit* says only on which side of t the quantity was seen: a config that ran out of memory needed
more than there is, one that ran needed less. Its likelihood Phi(s (g - t) / tau) is log-concave, and the Laplace approximation
replaces it by a Gaussian at the mode (Rasmussen & Williams 2006, section 3.4.1 and eq. 3.16).

    y, t   value or limit, shape (n,)        s   0 value, +1 above the limit, -1 below it
    noise  standard deviation of the value, or the width tau of the limit
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Array = NDArray[np.float64]
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """n observations."""

    values: Array
    """y or t, shape (n,)"""
    sides: Array
    """0, +1 or -1, shape (n,)"""
    noise: Array
    """standard deviations, shape (n,)"""

    def gaussians(self, g: Array) -> tuple[Array, Array]:
        """Targets and variances, shape (n,), of the Gaussians that match the likelihood's slope and curvature at g, shape (n,)."""
        u = self.sides * (g - self.values) / self.noise
        # the ratio of normal density to distribution function, without underflow far below the limit
        ratio = np.exp(-0.5 * u * u - _LOG_SQRT_2PI - log_ndtr(u))
        curvature = np.maximum(ratio * (u + ratio), 1e-8) / self.noise**2
        targets = g + self.sides * ratio / self.noise / curvature
        is_value = self.sides == 0
        return (
            np.where(is_value, self.values, targets),
            np.where(is_value, self.noise**2, 1.0 / curvature),
        )

    def log_likelihood(self, g: Array) -> float:
        """Log probability of all observations given g, shape (n,), up to a constant."""
        z = (g - self.values) / self.noise
        return float(np.where(self.sides == 0, -0.5 * z * z - np.log(self.noise), log_ndtr(self.sides * z)).sum())

    def and_values(self, values: Array, noise: float) -> Sites:
        """These and `values`, shape (m,), with that noise."""
        return Sites(
            values=np.concatenate([self.values, values]),
            sides=np.concatenate([self.sides, np.zeros(len(values))]),
            noise=np.concatenate([self.noise, np.full(len(values), noise)]),
        )

    def __len__(self) -> int:
        return len(self.values)
