"""Which trials ran while sends stalled, so that they tell nothing about constants, level and neighbours.

A pipeline over nodes may take several times as long as it should, with a known chance and by a known factor (`stalls`). Of a trial that ran so, a refit would say
that the whole cluster is that slow. So each trial that can stall is explained both ways, given what the others say of it:

    log odds = log(p / (1 - p)) + (x^2 - (x - w)^2) / 2 v

    x, v    log(measured / predicted) less its mean given all other trials, and its variance (`Conditioned.left_out`); of a single trial those before any
    p, w    chance of a stall, and log of the factor by which it lengthens the step

The trial with the greatest odds above one is set aside, and the rest are asked again. Trials that agree with each other keep each other: a cluster that is slow
throughout is believed from its second trial on. Neglected: that stalled sends of one cluster differ by a tenth, which is little beside v.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from autotune.cost.refit import Array, Conditioned, UncertainConstants
from autotune.cost.sensitivity import Sensitivity


def unstalled(rows: Sensitivity, errors: Array, prior: UncertainConstants) -> NDArray[np.intp]:
    """Numbers of the trials whose sends did not stall, ascending. `errors`: log(measured / predicted) of each trial, shape (n,)."""
    kept = np.arange(len(errors))
    while len(kept) and rows.stall_probability[kept].any():
        left = rows.take(kept)
        apart, variance = Conditioned.on(left, errors[kept], prior).left_out()
        log_odds = scipy.special.logit(left.stall_probability) + (apart**2 - (apart - left.stall_log) ** 2) / (
            2.0 * variance
        )
        likeliest = int(np.argmax(log_odds))
        if log_odds[likeliest] <= 0.0:
            break
        kept = np.delete(kept, likeliest)
    return kept
