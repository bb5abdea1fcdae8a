"""Own error: what is wrong about one config's predicted step time beyond the constants and the level, and how configs share it.

    cov(e_i, e_j) = r_i r_j w_ij exp(-d_ij / l) + a_i^2 [i = j]        r_i^2 + a_i^2 = s_i^2        a_i = min(s_i, a)

    s   standard deviation of a config's own error (`uncertainty.time_sigma`)
    a   standard deviation of what a measurement shares with no other, however well its pair of GPU type and trainer is known: settings that no knob
        states, and what repeats differ by
    l   distance over which the rest is shared: Euclidean, one for each doubling of a count or step of a word, over all knobs
    w   1 within a workload, less between workloads

The exponential kernel is that of an Ornstein-Uhlenbeck process: kernels, schedules and message sizes change with each step of a knob, so errors change in
jumps and not smoothly. The three numbers are those of published files that were not read (`tests/benchmarks/error_fit.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from autotune.cost.sensitivity import Sensitivity

Array = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnError:
    """How the own errors of configs resemble each other."""

    alone_sigma: float
    """a"""
    length: float
    """l"""
    between_workloads: float
    """w of configs of different workloads"""

    def covariance(self, rows: Sensitivity, others: Sensitivity) -> Array:
        """Covariance of the part that neighbours share, shape (N, n)."""
        apart = cdist(rows.points, others.points)
        same = rows.workloads[:, None] == others.workloads[None, :]
        alike = np.exp(-apart / self.length) * np.where(same, 1.0, self.between_workloads)
        return np.asarray(np.outer(self.rest(rows), self.rest(others)) * alike)

    def alone(self, rows: Sensitivity) -> Array:
        """Standard deviation of the part that a measurement shares with no other, shape (n,)."""
        return np.minimum(rows.own_sigma, self.alone_sigma)

    def rest(self, rows: Sensitivity) -> Array:
        """Standard deviation of the part that neighbours share, shape (n,)."""
        return np.asarray(np.sqrt(rows.own_sigma**2 - self.alone(rows) ** 2))
