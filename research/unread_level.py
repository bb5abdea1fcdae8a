"""Level of trainers that were never fitted: how much longer their clusters take than constants
pooled from other pairs predict, by kind of program (`Traits.program`).

    l_f     level of file f: log(measured / predicted), median of each cluster's rows, mean over the file's clusters. The GPU family was fitted, its trainer was not
    n, s    number of the files of one kind, and spread of their levels: 1.4826 times the median distance from their median, which is the standard deviation of
            normal ones
    t       standard deviation of a level before any file is read (`level_sigma` of the refit)

    middle  t^2 / (t^2 + pi/2 s^2 / n) * median l_f   partial pooling between the files' median and none (Gelman and Hill 2007, eq. 12.1); a median of normal
                                                      values has pi/2 times the variance of their mean

The median, because few files have levels of very different size: one of 0.30 beside four of 0.11 to
0.15 moves a mean past all four (Huber 1964).

The width about it stays that of all levels about zero (`error_fit`): the files are too few to
narrow it, and with a narrower one `bayesian` gives up a misleading history later.

GPU families that were never fitted have no middle: some are a third faster than a datasheet's share
says, others three times as slow. How far they lie off is the width:

    sigma^2 = (k w^2 + sum of l_f^2) / (k + n)    inverse chi-squared about w, the width of fitted families, which counts as k = 4 files (Gelman et al., section 2.6)

Files are those of the fit and the sources of `published_unseen.csv`; for GPU families that were
never fitted those of all batches that have been read. Sources of the later batches would move the
middles by a few percent and predict each other no better (`error_causes`). Predictions must be of
constants that never read the file, without a level. The level of a file that is judged is that of
the other files (`without`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autotune.cost import calibration_for
from autotune.cost.traits import traits_of
from research.held_out import Fold, Judged, folds_of, judged, kind_of, levels_of
from tests.benchmarks.published import FILES
from tests.benchmarks.published.unseen import READ, unseen

KINDS = ("pooled", "any trainer")
"""what constants know of a pair whose GPU family was fitted with other trainers"""
PROGRAMS = ("sharded", "cut")
UNFITTED = "unfitted_gpu"
"""name of the levels of GPU families that were never fitted, whatever the program"""
PRIOR_FILES = 4
"""k"""
NORMAL = 1.4826
"""standard deviation of a normal distribution, in median distances from its median"""
Levels = dict[str, dict[str, float]]
"""l_f by kind of program and file"""


def file_levels(files: Mapping[str, Judged], kinds: Sequence[str] = KINDS) -> dict[str, float]:
    """l_f of the files that have rows whose constants are of these kinds."""
    levels = {}
    for name, rows in files.items():
        of_kind = np.flatnonzero([kind_of(source) in kinds for source in rows.source.tolist()])
        if len(of_kind):
            levels[name] = float(np.mean(list(levels_of(rows.take(of_kind)).values())))
    return levels


def program_levels(known: Mapping[str, Mapping[str, Any]], shipping: Mapping[str, Any]) -> Levels:
    """l_f of all files and sources. `known`: constants that have not read a file, by its name;
    `shipping`: those that have read all files, but no source."""
    folds = {
        name: folds_of(FILES[name](), _without_levels(constants))
        for name, constants in known.items()
    }
    plain = _without_levels(shipping)
    batches = [
        {name: [(b, calibration_for(b.workload, known=plain)) for b in blocks] for name, blocks in unseen(batch=batch).items()}
        for batch in READ
    ]  # fmt: skip
    levels = {
        program: file_levels(_judged({**folds, **batches[0]}, (program,))) for program in PROGRAMS
    }
    every = {name: blocks for some in (folds, *batches) for name, blocks in some.items()}
    return {**levels, UNFITTED: file_levels(_judged(every, PROGRAMS), ("datasheet",))}


def unread_trainer(levels: Levels, *, prior_sigma: float, shared_sigma: float) -> dict[str, Any]:
    """The factors and the width as `constants.json` keeps them, with the levels that they are of;
    no factor from fewer than two files. `prior_sigma`: t; `shared_sigma`: w."""
    programs = {
        p: middle(list(of.values()), prior_sigma=prior_sigma)
        for p in PROGRAMS
        if len(of := levels.get(p, {})) > 1
    }
    rounded = {
        p: {name: float(f"{level:.4g}") for name, level in of.items()} for p, of in levels.items()
    }
    unfitted = np.array(list(levels.get(UNFITTED, {}).values()))
    width = math.sqrt(
        (PRIOR_FILES * shared_sigma**2 + float(unfitted @ unfitted)) / (PRIOR_FILES + len(unfitted))
    )
    return {"programs": programs, f"{UNFITTED}_sigma": float(f"{width:.4g}"), "levels": rounded}


def middle(levels: Sequence[float], *, prior_sigma: float) -> float:
    """The factor of the files of one kind."""
    every = np.array(list(levels))
    median = float(np.median(every))
    spread = NORMAL * float(np.median(np.abs(every - median)))
    of_median = 0.5 * math.pi * spread**2 / len(every)
    return float(f"{math.exp(median * prior_sigma**2 / (prior_sigma**2 + of_median)):.4g}")


def without(
    levels: Levels, name: str, *, prior_sigma: float, shared_sigma: float
) -> dict[str, Any]:
    """The factors and the width without one file."""
    rest = {
        program: {n: level for n, level in of.items() if n != name}
        for program, of in levels.items()
    }
    return unread_trainer(rest, prior_sigma=prior_sigma, shared_sigma=shared_sigma)


def _without_levels(constants: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in constants.items() if name != "unread_trainer"}


def _judged(folds: Mapping[str, Sequence[Fold]], programs: Sequence[str]) -> dict[str, Judged]:
    """The files that have timed rows of such programs."""
    of_kind = {
        n: [f for f in every if traits_of(f[0].workload.trainer).program in programs]
        for n, every in folds.items()
    }
    timed = {
        n: [(b, c) for b, c in every if np.isfinite(b.tokens_per_s_per_gpu).any()]
        for n, every in of_kind.items()
    }
    return {n: judged(every, with_sensitivity=False) for n, every in timed.items() if every}
