"""Probability that a config fails for another reason than memory: a hang, an error, a config that the trainer refuses, divergence.

Failures and successes nearby are counted with the weight of their correlation, beside a prior rate (Beta-Bernoulli with a kernel,
as in kernel density classification):

    p(x) = (w0 p0 + sum_failed k(x, x_i)) / (w0 + sum_all k(x, x_i))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.surrogate.kernel import distances, matern52

Array = NDArray[np.float64]

RATE = 0.02
"""p0: failures of this kind before anything is seen"""
WEIGHT = 1.0
"""w0: observations that the prior rate is worth"""
LENGTH = 2.0
"""doublings over which failures correlate"""


def failure_rate(points: Array, seen: Array, failed: NDArray[np.bool_]) -> Array:
    """p at `points` (N, d), after trials at `seen` (n, d), of which `failed` (n,) did; shape (N,)."""
    if not len(seen):
        return np.full(len(points), RATE)
    near = matern52(distances(points, seen), LENGTH)
    return np.asarray((WEIGHT * RATE + near @ failed) / (WEIGHT + near.sum(axis=1)))
