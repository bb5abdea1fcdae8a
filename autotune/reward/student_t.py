"""Student's t: how far chance moves a difference that is measured in units of its estimated
standard error."""

from __future__ import annotations

from functools import lru_cache

CONFIDENCE = 0.995
"""one-sided probability that chance stays below the quantile: so rarely is a healthy trial taken
for a bad one"""


@lru_cache(maxsize=1024)
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The quantile with so many degrees of freedom; `confidence`: its one-sided probability."""
    from scipy.special import (
        stdtrit,  # takes a third of a second to import, which commands that judge no losses need not wait for
    )

    return float(stdtrit(freedom, confidence))
