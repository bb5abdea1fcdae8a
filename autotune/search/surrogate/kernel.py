"""Covariances between configs: of the residual, and of what a study's own knobs do.

The residual: Matern 5/2 over the coordinates of the space. A coordinate changes by one when a
degree doubles or a word is replaced by its neighbour, so one length scale serves all coordinates.

A study's own knobs z, of which the cost model knows nothing: a sum of effects of each of them and
of their combinations, which count less (functional analysis of variance; Durrande et al. 2012,
"Additive covariance kernels for high-dimensional Gaussian process modeling"):

    k(z, z') = (prod_j (1 + r k_j(z_j, z'_j)) - 1) / r  =  sum_j k_j + r sum_{i<j} k_i k_j + ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from autotune.spec.knob import Knob

Array = NDArray[np.float64]

TOGETHER = 0.25
"""r: variance of the effect of a pair of own knobs relative to that of one"""
OWN_NUGGET = 0.1
"""variance of what own knobs do in one config alone, relative to the same"""
OWN_LENGTH = 0.5
"""length scale of the effect of an own knob, relative to the range of its values"""
FAR = 100.0
"""distance between two words on the axis of an own knob: what one does says nothing about the
other"""


def distances(a: Array, b: Array) -> Array:
    """Euclidean distances, shape (len(a), len(b)), of points a (., d) and b (., d)."""
    return np.asarray(cdist(a, b))


def matern52(distance: Array, length: float) -> Array:
    """Correlations at these distances (Rasmussen & Williams 2006, eq. 4.17, nu = 5/2), of the same
    shape."""
    r = distance * (np.sqrt(5.0) / length)
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


def surrogate_points(points: Array, own: Sequence[Knob]) -> Array:
    """Coordinates (n, d) whose last columns are those of own knobs, with these columns on the axes
    of `own_correlations`: numbers from 0 to 1, words far apart. Knobs of one value are left out."""
    first = points.shape[1] - len(own)
    columns = [*points[:, :first].T]
    for column, knob in zip(points[:, first:].T, own, strict=True):
        if len(knob.values) > 1:
            low, high = knob.coordinate(np.array([0, len(knob.values) - 1]))
            columns.append(column * FAR if knob.kind == "word" else (column - low) / (high - low))
    return np.stack(columns, axis=1)


def own_correlations(a: Array, b: Array) -> Array:
    """k between the own knobs of configs, a (n, k) and b (m, k); shape (n, m). The variance of one
    knob's effect is one."""
    product = np.ones((len(a), len(b)))
    for ours, theirs in zip(a.T, b.T, strict=True):
        product *= 1.0 + TOGETHER * matern52(np.abs(ours[:, None] - theirs[None, :]), OWN_LENGTH)
    return np.asarray((product - 1.0) / TOGETHER)


def own_variance(own: int) -> float:
    """Variance of what so many own knobs do in a config: k of it with itself, and the nugget."""
    return float(((1.0 + TOGETHER) ** own - 1.0) / TOGETHER) + OWN_NUGGET if own else 0.0


def apart(a: Array, b: Array, own: int) -> tuple[Array, Array]:
    """Of points a (n, d) and b (m, d), whose last `own` columns are own knobs: distances over the
    knobs of every study, and covariances of what own knobs do, shape (n, m) each."""
    knobs = a.shape[1] - own
    away = distances(a[:, :knobs], b[:, :knobs])
    if not own:
        return away, np.broadcast_to(0.0, away.shape)
    ours, theirs = a[:, knobs:], b[:, knobs:]
    return away, own_correlations(ours, theirs) + OWN_NUGGET * (
        (away == 0.0) & (distances(ours, theirs) == 0.0)
    )


class Alike(NamedTuple):
    """How alike two lists of configs are, shape (n, m) each."""

    residual: Array
    """correlations of the residual"""
    own: Array
    """covariances of what own knobs do, where the variance of one knob's effect is one"""

    def take(self, columns: NDArray[np.bool_]) -> Alike:
        """These columns of it."""
        return Alike(self.residual[:, columns], self.own[:, columns])
