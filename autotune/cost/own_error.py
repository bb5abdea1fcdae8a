"""Own error: what is wrong about one config's predicted step time beyond the constants and the level, and how configs share it.

    cov(e_i, e_j) = (r_i r_j w_ij + q a_i a_j k_ij) exp(-d_ij / l) + (1 - q) a_i^2 [i = j]        r_i^2 + a_i^2 = s_i^2        a_i = min(s_i, a)

    s   standard deviation of a config's own error (`uncertainty.time_sigma`)
    r   the part that changes from config to config with the knobs
    l   distance over which it is shared: Euclidean, one for each doubling of a count or step of a word, over all knobs
    w   1 within a workload, less between workloads
    a   the part that does not carry over to neighbours: the speed of these very kernels, settings that no knob states, and what repeats differ by
    k   1 for configs in which a rank computes the same for a layer and a micro-batch, else 0: same layer, sequence, tensor degree, micro-batch and recomputation, whatever
        the pipeline, the number of ranks and the accumulation. Their kernels are the same ones, in a large job and in a small one
    q   share of a^2 that such configs have in common

The exponential kernel is that of an Ornstein-Uhlenbeck process: kernels, schedules and message sizes change with each step of a knob, so errors change in
jumps and not smoothly. a, l and w are those of published files that were not read, q of replays of jobs by smaller ones (`research/error_fit.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.sensitivity import Sensitivity
from autotune.spec import KNOBS

Array = NDArray[np.float64]

ELSEWHERE = ("dp", "dp_replicas", "zero_stage", "accumulation_steps", "pp", "pp_schedule", "virtual_stages", "pp_split")
"""knobs that do not change what a rank computes for a layer and a micro-batch"""
WORK = [k for k, name in enumerate(KNOBS) if name not in ELSEWHERE]

FEW = 1 << 14
"""distances below which SciPy's module for them is not worth its import, which takes a quarter of a second"""


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
    same_work: float
    """q"""

    def covariance(self, rows: Sensitivity, others: Sensitivity) -> Array:
        """Covariance of the part that neighbours share, shape (N, n)."""
        apart = _distances(rows.points, others.points)
        same = rows.workloads[:, None] == others.workloads[None, :]
        near = np.exp(-apart / self.length)
        rest = np.outer(self.rest(rows), self.rest(others)) * np.where(same, 1.0, self.between_workloads)
        kernels = self.same_work * np.outer(self._sharp(rows), self._sharp(others)) * _same_work(rows, others)
        return np.asarray((rest + kernels) * near)

    def alone(self, rows: Sensitivity) -> Array:
        """Standard deviation of the part that a measurement shares with no other, shape (n,)."""
        return np.asarray(np.sqrt(1.0 - self.same_work) * self._sharp(rows))

    def rest(self, rows: Sensitivity) -> Array:
        """Standard deviation of the part that changes with the knobs, shape (n,)."""
        return np.asarray(np.sqrt(rows.own_sigma**2 - self._sharp(rows) ** 2))

    def _sharp(self, rows: Sensitivity) -> Array:
        return np.minimum(rows.own_sigma, self.alone_sigma)


def _distances(a: Array, b: Array) -> Array:
    """Euclidean distances, shape (N, n)."""
    if len(a) * len(b) > FEW:
        import scipy

        return np.asarray(scipy.spatial.distance.cdist(a, b))
    squares = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):  # in cdist's order, so that both give the same number
        squares += (a[:, k, None] - b[None, :, k]) ** 2
    return np.asarray(np.sqrt(squares))


def _same_work(rows: Sensitivity, others: Sensitivity) -> NDArray[np.bool_]:
    """k, shape (N, n)."""
    width = rows.points.shape[1]
    work = [*WORK, *range(len(KNOBS), width)]
    return np.asarray(
        (_distances(rows.points[:, work], others.points[:, work]) == 0)
        & (rows.layers[:, None] == others.layers[None, :])
    )
