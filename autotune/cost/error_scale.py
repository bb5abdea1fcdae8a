"""Error scale: how wide the errors of a study's configs are, as its trials show it.

Of one program all configs are predicted within a few percent, another's scatter by a factor about whatever level they have. So the variances of all errors,
shared and own, are those of `refit` times a factor f that is the study's own, and not known before its trials:

    f ~ c m / chi^2_m          before any trial: an inverse gamma of m degrees of freedom
    f ~ (c m + q) / chi^2_(m + n)          given n trials        q = y' A^-1 y, their squared distance from what was predicted (`Conditioned.squares`)

The error of a config is then Student's t with m + n degrees of freedom (Shah, Wilson and Ghahramani 2014, arXiv 1402.4306, equation 5). Its mean is that of
a normal, so predictions do not depend on f. Trials that agree with what was predicted narrow the intervals, and trials that lie far off keep them wide, until so many
agree with each other that their own scatter tells.

m gives the rows of published sources about the highest density after one and after three trials, which hardly depends on it from 2 to 4, and c has nine tenths of
them inside (`research/error_scale.py`). Neglected: before any trial the widths stay those of `uncertainty`, a sixth narrower than such a t, since they hold.
"""

from __future__ import annotations

import math

import scipy

from autotune.cost.uncertainty import TAIL, Z90

DEGREES = 3.0
"""m"""
SCALE = 0.7
"""c"""


def widening(squares: float, trials: int) -> float:
    """Factor on standard deviations given that many trials, such that the 90% interval of a normal is that of the t. `squares`: q."""
    degrees = DEGREES + trials
    variance = (SCALE * DEGREES + squares) / degrees
    return math.sqrt(variance) * float(scipy.special.stdtrit(degrees, 1.0 - TAIL)) / Z90
