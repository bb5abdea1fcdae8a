"""Effective sample size of correlated steps: n steps with lag-1 autocorrelation rho determine their
mean as well as n (1 - rho) / (1 + rho) independent ones (Bayley & Hammersley 1946)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_CORRELATION = 0.9
"""upper limit of rho, so that at most 19 steps count as one"""


def steps_per_independent_one(residuals: NDArray[np.float64]) -> float:
    """How many correlated steps count as one: (1 + rho) / (1 - rho), at least 1. `residuals`:
    deviations from the mean or fitted curve."""
    squares = float(residuals @ residuals)
    rho = float(residuals[1:] @ residuals[:-1]) / squares if squares > 0 else 0.0
    rho = min(max(rho, 0.0), MAX_CORRELATION)
    return (1 + rho) / (1 - rho)
