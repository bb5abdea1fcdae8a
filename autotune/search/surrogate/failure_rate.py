"""Probability that a config fails for another reason than memory: a hang, an error, divergence, or
a config that the trainer refuses.

Failures and successes nearby are counted with their correlation as weight, beside a prior rate (a
Beta-Bernoulli model with kernel weights, as in kernel density classification):

    p(x) = (w0 p0 + sum_failed k(x, x_i)) / (w0 + sum_all k(x, x_i))

Neglected: the kinds of failure, and any knowledge of which knob caused one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.surrogate.kernel import distances, matern52

Array = NDArray[np.float64]

RATE = 0.02
"""p0: failure rate before any trial"""
WEIGHT = 1.0
"""w0: number of trials that the prior rate counts as"""
LENGTH = 2.0
"""length scale over which failures correlate, in doublings of a knob"""


def failure_rate(points: Array, seen: Array, failed: NDArray[np.bool_]) -> Array:
    """p at `points` (N, d), after trials at `seen` (n, d), of which `failed` (n,) did; shape
    (N,)."""
    if not len(seen):
        return np.full(len(points), RATE)
    near = matern52(distances(points, seen), LENGTH)
    return np.asarray((WEIGHT * RATE + near @ failed) / (WEIGHT + near.sum(axis=1)))
