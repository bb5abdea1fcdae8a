"""Steps that resemble their neighbours tell less: n of them, whose lag-1 correlation is rho, say as
much of their mean as n (1 - rho) / (1 + rho) independent ones (Bayley & Hammersley 1946)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_CORRELATION = 0.9
"""largest correlation of neighbours that is assumed: at the most 19 steps, or 19 lines of a log,
count as one"""


def steps_per_independent_one(residuals: NDArray[np.float64]) -> float:
    """(1 + rho) / (1 - rho) of values about their mean or curve; 1 where neighbours do not resemble
    each other."""
    squares = float(residuals @ residuals)
    rho = float(residuals[1:] @ residuals[:-1]) / squares if squares > 0 else 0.0
    rho = min(max(rho, 0.0), MAX_CORRELATION)
    return (1 + rho) / (1 - rho)
