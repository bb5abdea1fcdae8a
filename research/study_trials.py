"""What trials teach: errors of the configs of a study that it has not tried.

A study is one workload: a model, sequence length, cluster, number of GPUs and global batch. Its
trials are of that workload, and errors are those of its other rows within twice its best. Each
study counts by its rows.

    drawn      trials drawn at random among the rows within twice the best, `DRAWS` times
    fastest    the trial whose tokens/s are predicted highest among all rows of the study that ran, given the trials before it: what a search tries
    as_a_study the baseline that nobody tuned, or the row that comes nearest to it, and then the trials that are predicted fastest, given those before
    mixed      rows of one model and sequence length stand for a study whatever their GPU count and batch, and those of a cluster where none of its models has
               more rows than trials. No study is like that: its trials are of one workload. Published recipes, one row per workload, have no other
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.cost import Calibration
from autotune.cost.learn.correction import errors_given, learnt
from autotune.cost.learn.refit import UncertainConstants, uncertain
from autotune.cost.learn.uncertainty import Z90
from research.held_out import FREE, NEAR, Judged

DRAWS = 20
"""sets of trials that are drawn for each study"""
Choose = Callable[[Judged, int, UncertainConstants], list[np.ndarray]]
"""sets of so many trials among the rows of a study"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterTrials:
    """The rows of studies that were no trials, once for each set of trials."""

    studies: int
    """number of studies with more rows than trials"""
    error: np.ndarray
    """log(measured / predicted), given the trials"""
    is_inside: np.ndarray
    """whether the row lies in its interval, given the trials"""

    @property
    def median(self) -> float:
        """Median of |predicted / measured - 1|; nan without rows."""
        return float(np.median(np.abs(np.expm1(-self.error)))) if len(self) else np.nan

    @property
    def inside(self) -> float:
        """Share of rows in their interval; nan without rows."""
        return float(np.mean(self.is_inside)) if len(self) else np.nan

    def __len__(self) -> int:
        return len(self.error)


def drawn(rows: Judged, trials: int, prior: UncertainConstants) -> list[np.ndarray]:
    """Random sets of rows within twice the best."""
    del prior
    rng = np.random.default_rng([0, trials])
    return [rng.choice(np.flatnonzero(_is_near(rows)), trials, replace=False) for _ in range(DRAWS)]


def fastest(rows: Judged, trials: int, prior: UncertainConstants) -> list[np.ndarray]:
    """The rows that are predicted fastest, one after the other, each given those before."""
    return [_picked(rows, trials, prior, [])]


def as_a_study(rows: Judged, trials: int, prior: UncertainConstants) -> list[np.ndarray]:
    """The row nearest to the baseline, and then those that are predicted fastest."""
    return [_picked(rows, trials, prior, [int(np.lexsort(rows.plainness.T)[0])])]


def _picked(rows: Judged, trials: int, prior: UncertainConstants, tried: list[int]) -> np.ndarray:
    """The trials of a search that has tried these rows."""
    # per token: configs of a study have the same batch, but rows of a cluster have not
    predicted = np.log(rows.slowness) - rows.error
    while len(tried) < trials:
        expected = predicted + (
            errors_after(rows, np.array(tried), prior, slice(None))[0] if tried else 0.0
        )
        expected[tried] = np.inf
        tried = [*tried, int(np.argmin(expected))]
    return np.array(tried)


def after_trials(
    rows: Judged,
    trials: int,
    known: Mapping[str, Any],
    *,
    choose: Choose = drawn,
    mixed: bool = False,
) -> AfterTrials:
    """What is left of the errors after that many trials of each study. `known`: the prior of a
    refit; `mixed`: rows of several workloads stand for a study."""
    errors, inside = [], []
    prior = uncertain(Calibration(), known, names=FREE)
    found = mixed_studies(rows, trials) if mixed else studies(rows, trials)
    for study in found:
        own = rows.take(study)
        near = np.flatnonzero(_is_near(own))
        for tried in choose(own, trials, prior):
            rest = np.setdiff1d(near, tried)
            center, sigma = errors_after(own, tried, prior, rest)
            left = own.error[rest] - center
            errors.append(left)
            inside.append(np.abs(left) <= Z90 * sigma)
    if not errors:
        return AfterTrials(studies=0, error=np.empty(0), is_inside=np.empty(0, dtype=bool))
    return AfterTrials(
        studies=len(found), error=np.concatenate(errors), is_inside=np.concatenate(inside)
    )


def studies(rows: Judged, trials: int) -> list[np.ndarray]:
    """The rows of each study that has more than that many within twice its best."""
    return [study for study in _groups(rows.study) if _is_near(rows.take(study)).sum() > trials]


def mixed_studies(rows: Judged, trials: int) -> list[np.ndarray]:
    """The rows within twice the best of each cell that has more than that many; of a whole cluster
    none of whose cells has."""
    found: list[np.ndarray] = []
    for cluster in _groups(rows.where):
        near = cluster[rows.slowness[cluster] <= NEAR]
        cells = [near[cell] for cell in _groups(rows.cell[near])]
        found += [cell for cell in cells if len(cell) > trials] or [near] * (len(near) > trials)
    return found


def _groups(names: np.ndarray) -> Sequence[np.ndarray]:
    return [np.flatnonzero(names == name) for name in sorted(set(names.tolist()))]


def _is_near(rows: Judged) -> np.ndarray:
    """The rows within twice the best of their study; rows of several are compared with the best of
    their cell."""
    best = rows.slowness.min() if len(set(rows.study.tolist())) == 1 else 1.0
    return np.asarray(rows.slowness <= NEAR * best)


def errors_after(
    rows: Judged, tried: np.ndarray, prior: UncertainConstants, rest: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of log(measured / predicted) of the rows `rest`, given the trials
    as a study's `Correction` takes them."""
    known = learnt(rows.derivatives.take(tried), rows.error[tried], prior)
    if known is None:
        sigma = np.hypot(rows.config_sigma, rows.level_sigma)[rest]
        return np.zeros(len(sigma)), sigma
    return errors_given(known, rows.derivatives.take(rest))[:2]
