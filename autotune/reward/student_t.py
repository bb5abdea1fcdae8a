"""Quantiles of Student's t distribution."""

from __future__ import annotations

from functools import lru_cache

CONFIDENCE = 0.995
"""default one-sided confidence: one healthy trial in 200 is rejected by chance"""


@lru_cache(maxsize=1024)
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The quantile for `freedom` degrees of freedom at a one-sided `confidence`."""
    # imported here because it takes a third of a second, which most commands do not need
    from scipy.special import stdtrit

    return float(stdtrit(freedom, confidence))
