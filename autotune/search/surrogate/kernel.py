"""Covariances between configs: of the residual, and of the effects of a study's own knobs.

The residual has a Matern 5/2 covariance over the coordinates of the space. A coordinate changes by
one when a degree doubles or a word is replaced by the next one, so one length scale fits all
coordinates.

A study's own knobs z, which the cost model does not include, have a sum of effects of each knob and
smaller effects of their combinations (functional analysis of variance; Durrande et al. 2012,
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
"""r: variance of the effect of a pair of own knobs, relative to that of one knob"""
OWN_NUGGET = 0.1
"""variance of the effect that own knobs have in a single config, relative to that of one knob"""
OWN_LENGTH = 0.5
"""length scale of the effect of an own knob, relative to the range of its values"""
FAR = 100.0
"""distance between two words of an own knob; so large that their effects are independent"""


def distances(a: Array, b: Array) -> Array:
    """Euclidean distances, shape (len(a), len(b)), of points a (., d) and b (., d)."""
    return np.asarray(cdist(a, b))


def matern52(distance: Array, length: float) -> Array:
    """Correlations at these distances (Rasmussen & Williams 2006, eq. 4.17, nu = 5/2), same
    shape."""
    r = distance * (np.sqrt(5.0) / length)
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))


def surrogate_points(points: Array, own: Sequence[Knob]) -> Array:
    """Rescale the last columns of coordinates (n, d), those of own knobs, for `own_correlations`:
    numbers to 0 to 1, words far apart. Columns of knobs with a single value are dropped."""
    first = points.shape[1] - len(own)
    columns = [*points[:, :first].T]
    for column, knob in zip(points[:, first:].T, own, strict=True):
        if len(knob.values) > 1:
            low, high = knob.coordinate(np.array([0, len(knob.values) - 1]))
            columns.append(column * FAR if knob.kind == "word" else (column - low) / (high - low))
    return np.stack(columns, axis=1)


def own_correlations(a: Array, b: Array) -> Array:
    """k between the own knobs of configs, a (n, k) and b (m, k), shape (n, m), for a variance of one
    per knob."""
    product = np.ones((len(a), len(b)))
    for ours, theirs in zip(a.T, b.T, strict=True):
        product *= 1.0 + TOGETHER * matern52(np.abs(ours[:, None] - theirs[None, :]), OWN_LENGTH)
    return np.asarray((product - 1.0) / TOGETHER)


def own_variance(own: int) -> float:
    """Variance of the effect of `own` own knobs in a config: k of it with itself, and the nugget."""
    return float(((1.0 + TOGETHER) ** own - 1.0) / TOGETHER) + OWN_NUGGET if own else 0.0


def apart(a: Array, b: Array, own: int) -> tuple[Array, Array]:
    """For points a (n, d) and b (m, d), whose last `own` columns are own knobs: distances over the
    other knobs, and covariances of the own knobs' effects, shape (n, m) each."""
    knobs = a.shape[1] - own
    distance = distances(a[:, :knobs], b[:, :knobs])
    if not own:
        return distance, np.broadcast_to(0.0, distance.shape)
    ours, theirs = a[:, knobs:], b[:, knobs:]
    is_same = (distance == 0.0) & (distances(ours, theirs) == 0.0)
    return distance, own_correlations(ours, theirs) + OWN_NUGGET * is_same


class Alike(NamedTuple):
    """Similarity of n configs to m others, shape (n, m) each."""

    residual: Array
    """correlations of the residual"""
    own: Array
    """covariances of the own knobs' effects, for a variance of one per knob"""

    def take(self, columns: NDArray[np.bool_]) -> Alike:
        """The columns selected by a mask."""
        return Alike(self.residual[:, columns], self.own[:, columns])
