"""Tables of the cost model's accuracy: errors, intervals before and after trials, and ranking, by
data file and by what was held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from autotune.cost.learn.uncertainty import Z90
from research.held_out import Judged
from research.study_trials import AfterTrials, after_trials, as_a_study, fastest

HEADER = (
    "data",
    "held out by",
    "rows",
    "median",
    "p90",
    "bias",
    "inside",
    "inside by own error",
    "Spearman",
)
TRIALS_HEADER = (
    "data", "held out by", "studies", "after 1", "median", "fastest 1", "median", "default 1", "median", "default and 1", "median", "studies", "after 3", "median", "mixed 1", "median", "mixed 3",
    "median",
)  # fmt: skip
LEAST_SIGMA = 0.04
"""smallest error of a config that is believed from few rows"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: the rows of a data file within twice their cell's best."""

    data: str
    held_out_by: str
    rows: int
    median: float
    p90: float
    bias: float
    """median of measured / predicted - 1"""
    inside: float
    """share of rows in the interval before any trial"""
    inside_own: float | None
    """share of rows within a config's own error, whose width comes from the other folds; None where
    the level is not known either"""
    one: AfterTrials
    """after one drawn trial of each study"""
    one_fastest: AfterTrials
    """after the trial that is predicted fastest"""
    default: AfterTrials
    """after the baseline"""
    default_and_one: AfterTrials
    """after the baseline and the trial that is then predicted fastest"""
    three: AfterTrials
    """after three drawn trials"""
    mixed: tuple[AfterTrials, AfterTrials]
    """after one and three drawn trials, where rows of several workloads stand for a study"""
    spearman: float
    """median over the cells"""

    def cells(self) -> tuple[str, ...]:
        """Errors before any trial, as text."""
        own = "" if self.inside_own is None else _percent(self.inside_own)
        return (
            self.data, self.held_out_by, f"{self.rows:,}", _percent(self.median, 1), _percent(self.p90, 1),
            f"{100 * self.bias:+.1f}%", _percent(self.inside), own, "" if np.isnan(self.spearman) else f"{self.spearman:.3f}",
        )  # fmt: skip

    def trial_cells(self) -> tuple[str, ...]:
        """What trials leave, as text."""

        def figures(*several: AfterTrials) -> list[str]:
            return [
                text
                for after in several
                for text in (_percent(after.inside), _percent(after.median, 1))
            ]

        return (
            self.data, self.held_out_by, str(self.one.studies or ""), *figures(self.one, self.one_fastest, self.default, self.default_and_one), str(self.three.studies or ""),
            *figures(self.three, *self.mixed),
        )  # fmt: skip


def line(
    data: str, held_out_by: str, rows: Judged, known: Mapping[str, Any], *, level_is_known: bool
) -> Line:
    """The line of these rows; `known`: the prior of a refit. `level_is_known`: other rows of the
    same clusters were fitted."""
    near = rows.near()
    size = np.abs(np.expm1(-near.error))
    return Line(
        data=data, held_out_by=held_out_by, rows=len(near), median=float(np.median(size)), p90=float(np.quantile(size, 0.9)),
        bias=float(np.expm1(np.median(near.error))), inside=float(np.mean(near.is_inside)),
        inside_own=_inside_own(near) if level_is_known else None, spearman=_spearman(near),
        one=after_trials(rows, 1, known), one_fastest=after_trials(rows, 1, known, choose=fastest), default=after_trials(rows, 1, known, choose=as_a_study),
        default_and_one=after_trials(rows, 2, known, choose=as_a_study), three=after_trials(rows, 3, known),
        mixed=(after_trials(rows, 1, known, mixed=True), after_trials(rows, 3, known, mixed=True)),
    )  # fmt: skip


def sigma_of(errors: np.ndarray) -> float:
    """The width for which nine tenths of these errors lie in the 90% interval."""
    return float(np.quantile(np.abs(errors), 0.9) / Z90)


def _inside_own(near: Judged) -> float | None:
    """Each model's rows by the width of the others' errors."""
    names = sorted(set(near.model.tolist()))
    if len(names) < 2:
        return None
    inside = [
        np.abs(near.error[near.model == n]) <= Z90 * max(sigma_of(near.error[near.model != n]), LEAST_SIGMA) for n in names
    ]  # fmt: skip
    return float(np.mean(np.concatenate(inside)))


def _spearman(near: Judged) -> float:
    """Median over cells with at least five rows; nan without any."""
    ranks = []
    for cell in sorted(set(near.cell.tolist())):
        own = near.cell == cell
        if own.sum() >= 5:
            # per token and GPU: rows of a cell may have other batches
            speed = near.slowness[own]
            predicted = speed * near.predicted_s[own] / near.measured_s[own]
            ranks.append(float(spearmanr(predicted, speed)[0]))
    return float(np.nanmedian(ranks)) if ranks else np.nan


def table(lines: Sequence[Line]) -> list[str]:
    """Errors before any trial as a Markdown table."""
    return _markdown(HEADER, [each.cells() for each in lines])


def trials_table(lines: Sequence[Line]) -> list[str]:
    """What trials leave as a Markdown table."""
    return _markdown(TRIALS_HEADER, [each.trial_cells() for each in lines])


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|" + "---|" * len(header)
    return [
        "| " + " | ".join(header) + " |",
        rule,
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]


def _percent(share: float, digits: int = 0) -> str:
    return "" if np.isnan(share) else f"{100 * share:.{digits}f}%"
