"""Student's t: how far chance moves a difference that is measured in units of its estimated standard error."""

from __future__ import annotations

CONFIDENCE = 0.995
"""one-sided probability that chance stays below the quantile: so rarely is a healthy trial taken for a bad one"""


def t_quantile(freedom: float) -> float:
    """The quantile for `CONFIDENCE` with so many degrees of freedom, > 0."""
    from scipy.special import (
        stdtrit,  # takes a third of a second to import, which commands that judge no losses need not wait for
    )

    return float(stdtrit(freedom, CONFIDENCE))
