"""Covariance of the residual between configs: Matern 5/2 over the coordinates of the space.

A coordinate changes by one when a degree doubles or a word is replaced by its neighbour, so one length scale serves all coordinates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Array = NDArray[np.float64]


def distances(a: Array, b: Array) -> Array:
    """Euclidean distances, shape (len(a), len(b)), of points a (., d) and b (., d)."""
    return np.asarray(cdist(a, b))


def matern52(distance: Array, length: float) -> Array:
    """Correlations at these distances (Rasmussen & Williams 2006, eq. 4.17, nu = 5/2), of the same shape."""
    r = distance * (np.sqrt(5.0) / length)
    return np.asarray((1.0 + r + r * r / 3.0) * np.exp(-r))
