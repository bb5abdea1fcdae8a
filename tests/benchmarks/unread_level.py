"""Level of trainers that were never fitted: how much longer their clusters take than constants pooled from other pairs predict.

    l_f     level of file f: log(measured / predicted), median of each cluster's rows, mean over the file's clusters. The GPU family was fitted, its trainer was not
    n, s    number of these files, and spread of their levels: 1.4826 times the median distance from their median, which is the standard deviation of normal ones
    t       standard deviation of a level before any file is read (`level_sigma` of the refit)

    middle  t^2 / (t^2 + pi/2 s^2 / n) * median l_f   partial pooling between the files' median and none (Gelman and Hill 2007, eq. 12.1); a median of normal
                                                      values has pi/2 times the variance of their mean

The median, because few files have levels of very different size: one of 0.30 beside four of 0.11 to 0.15 moves a mean past all four (Huber 1964).

The width about it stays that of all levels about zero (`error_fit`): five files are too few to narrow it, and with a narrower one `bayesian` gives up a
misleading history later.

Predictions must be of constants that never read the file, without a level. The level of a file that is judged is that of the other files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tests.benchmarks.held_out import Judged, kind_of, levels_of

KINDS = ("pooled", "any trainer")
"""what constants know of a pair whose GPU family was fitted with other trainers"""
NORMAL = 1.4826
"""standard deviation of a normal distribution, in median distances from its median"""


def file_levels(files: Mapping[str, Judged]) -> dict[str, float]:
    """l_f of the files that have such rows."""
    levels = {}
    for name, rows in files.items():
        of_kind = np.flatnonzero([kind_of(source) in KINDS for source in rows.source.tolist()])
        if len(of_kind):
            levels[name] = float(np.mean(list(levels_of(rows.take(of_kind)).values())))
    return levels


def unread_trainer(levels: Mapping[str, float], *, prior_sigma: float) -> dict[str, float]:
    """The factor as `constants.json` keeps it, from l_f of the files; none from fewer than two files. `prior_sigma`: t."""
    if len(levels) < 2:
        return {}
    every = np.array(list(levels.values()))
    median = float(np.median(every))
    spread = NORMAL * float(np.median(np.abs(every - median)))
    of_median = 0.5 * math.pi * spread**2 / len(every)
    middle = median * prior_sigma**2 / (prior_sigma**2 + of_median)
    return {"level": float(f"{math.exp(middle):.4g}")}
