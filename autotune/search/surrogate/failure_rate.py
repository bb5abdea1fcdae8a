"""Probability that a config fails for a reason other than memory: a hang, an error, divergence, or
a config that the trainer rejects.

Failures and successes are weighted with their correlation, in addition to a prior rate (a
Beta-Bernoulli model with kernel weights, as in kernel density classification):

    p(x) = (w0 p0 + sum_failed k(x, x_i)) / (w0 + sum_all k(x, x_i))

Not modeled: the kinds of failure, and which knob caused one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.surrogate.kernel import distances, matern52

Array = NDArray[np.float64]

RATE = 0.02
"""p0: prior failure rate"""
WEIGHT = 1.0
"""w0: weight of the prior, in trials"""
LENGTH = 2.0
"""length scale over which failures correlate, in doublings of a knob"""


def failure_rate(points: Array, seen: Array, failed: NDArray[np.bool_]) -> Array:
    """p at `points` (N, d), shape (N,). `seen`: coordinates of the trials, (n, d); `failed`: which
    of them failed, (n,)."""
    if not len(seen):
        return np.full(len(points), RATE)
    near = matern52(distances(points, seen), LENGTH)
    return np.asarray((WEIGHT * RATE + near @ failed) / (WEIGHT + near.sum(axis=1)))
