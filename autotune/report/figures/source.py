"""The data for figures: a study's result, the cost model's predictions for its space, and the knobs
that vary.

Figures show at most about `MAX_MARKS` trials, because more cannot be distinguished. Omitted trials
are spread evenly; the best trial, the baseline and each improvement are always shown. A figure's
table has all trials.

    N    configs in the predicted space, at most `MAX_PREDICTED`; an even sample of a larger space

Predicted step times have the level that the study's trials showed (`Estimate.level` of the latest
trial).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost import estimate
from autotune.errors import AutotuneError
from autotune.plan.plan import fits
from autotune.report.svg.axes import Point
from autotune.results.figure import Column
from autotune.results.result import Result
from autotune.reward import counted_once, tokens_per_s
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, Study, Trial, TrialPurpose, TrialStatus, config_label
from autotune.spec.texts.as_text import UNKNOWN, bytes_cell, count_cell, duration_cell

StepSeries = Mapping[str, Sequence[float]]
"""series of an attempt so far: step, step_time_s, loss, grad_norm"""
MAX_MARKS = 500
"""maximum number of trials to draw in a figure"""

TRIAL = Column(name="trial", head="trial")
CONFIG = Column(name="config", head="config", is_number=False)
STATUS = Column(
    name="status", head="status", is_number=False, show=lambda status: str(status).lower()
)
MEASURED = Column(name="tokens_per_s", head="measured, tokens/s", show=count_cell, bar_of=0.0)
PREDICTED = Column(name="predicted_tokens_per_s", head="predicted, tokens/s", show=count_cell)
ELAPSED = Column(name="elapsed_s", head="after", show=duration_cell)
MEMORY = Column(name="peak_memory_bytes", head="peak memory", show=bytes_cell)
"""columns that several figures share"""


@dataclass(frozen=True, kw_only=True)
class FigureSource:
    """The data for a study's figures."""

    result: Result
    steps: Mapping[int, StepSeries] = field(default_factory=dict)
    """series of the running trials, by number: `autotune.ports.StudyReader.steps`"""

    @cached_property
    def space(self) -> PredictedSpace | None:
        """The valid configs with predictions; None if they cannot be listed on this machine, e.g.
        because the trainer is not installed."""
        return predicted_space(self.result.record.study, self.result.trials)

    @property
    def searched(self) -> list[Trial]:
        """Measured trials, one per config, and all proxies."""
        return [
            t
            for t in self.result.measured
            if t.purpose is TrialPurpose.PROXY or t.number in self.counted
        ]

    @cached_property
    def counted(self) -> frozenset[int]:
        """Numbers of the trials that represent their configs: one measured trial per config."""
        return frozenset(t.number for t in counted_once(self.result.shown))

    @property
    def without_proxies(self) -> list[Trial]:
        """Trials of the study's own job, without proxies, whose speed is that of a smaller job."""
        return [t for t in self.result.shown if t.purpose is not TrialPurpose.PROXY]

    def elapsed_s(self, moment: datetime | None) -> float | None:
        """Return the seconds from the start of the study to `moment`, including pauses; None if
        either is unknown."""
        start = self.result.record.started_at
        if start is None:
            start = min((t.started_at for t in self.result.shown if t.started_at), default=None)
        return (
            None if moment is None or start is None else max(0.0, (moment - start).total_seconds())
        )

    def kind(self, trial: Trial) -> str:
        """Return the kind of a trial's mark: best, base (the baseline), soft (stopped early) or
        dot."""
        best = self.result.best
        if best is not None and trial.number == best.number:
            return "best"
        if trial.purpose is TrialPurpose.BASELINE:
            return "base"
        return "soft" if trial.status is TrialStatus.STOPPED else "dot"

    def thinned(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return at most about `MAX_MARKS` of the trials, in order."""
        if len(trials) <= MAX_MARKS:
            return list(trials)
        stride = -(-len(trials) // MAX_MARKS)
        best = self.result.best.number if self.result.best else None
        top, drawn = float("-inf"), []
        for index, trial in enumerate(trials):
            speed = tokens_per_s(trial) if trial.is_measured else float("-inf")
            is_better, top = speed > top, max(top, speed)
            if (
                is_better
                or index % stride == 0
                or trial.purpose is TrialPurpose.BASELINE
                or trial.number == best
            ):
                drawn.append(trial)
        return drawn


MARK_TEXTS = {
    "soft": "Pale dots are trials that were stopped early because they could not win.",
    "best": "The large dot is the best trial.",
    "base": "The square is the baseline.",
    "fail": "Crosses at the bottom: failed.",
}
"""explanations of the marks, by kind"""


def mark_sentences(points: Sequence[Point]) -> list[str]:
    """Return sentences that explain the kinds of marks that occur."""
    kinds = {p.kind for p in points}
    return [words for kind, words in MARK_TEXTS.items() if kind in kinds]


def tooltip(trial: Trial, *facts: str) -> str:
    """Return a trial's tooltip."""
    return f"trial {trial.number}: {config_label(trial.config)}" + "".join(
        f", {fact}" for fact in facts
    )


def omission_sentence(shown: int, total: int) -> str:
    """Return the sentence that a figure draws only some of the runs; empty if it draws all."""
    return (
        f" {shown:,} of {total:,} runs are drawn; the data table has all of them."
        if shown < total
        else ""
    )


def varying_knobs(source: FigureSource) -> dict[str, tuple[Any, ...]]:
    """Return the knobs with at least two values in the space or the trials, with their values, in
    the usual order."""
    values_by_knob: dict[str, set[Any]] = {}
    for trial in source.result.shown:
        for name, value in trial.config.values().items():
            values_by_knob.setdefault(name, set()).add(value)
    if (space := source.space) is not None:
        for name, knob in space.table.knobs.items():
            column = set(space.table.column(name).tolist())
            values_by_knob.setdefault(name, set()).update(knob.decode(code) for code in column)
    return {
        name: tuple(sorted(values, key=value_sort_key))
        for name, values in values_by_knob.items()
        if len(values) > 1
    }


def value_text(value: Any) -> str:
    """Return a knob's value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)


def value_sort_key(value: Any) -> tuple[bool, float, str]:
    """Return the sort key of a knob's value: numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)


MAX_PREDICTED = 50_000
"""maximum number of configs to predict; a figure of more configs looks the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpace:
    """Valid configs as columns, with predictions of shape (N,)."""

    table: ConfigTable
    tokens_per_s: NDArray[np.float64]
    """speed of the whole job"""
    fits: NDArray[np.bool_]
    """whether the config is expected to fit in memory"""
    value: NDArray[np.float64]
    """the plan's ranking criterion for configs that fit: tokens/s times the probability of
    fitting"""
    total: int
    """number of configs in the space, including those outside the sample"""

    @property
    def optimum_tokens_per_s(self) -> float | None:
        """Predicted speed of the plan's first config; None if no config fits."""
        return (
            float(self.tokens_per_s[np.argmax(np.where(self.fits, self.value, -1.0))])
            if self.fits.any()
            else None
        )


def predicted_space(study: Study, trials: Sequence[Trial]) -> PredictedSpace | None:
    """Return the study's space with predictions from the bundled constants; None if it cannot be
    listed on this machine."""
    try:
        space = SearchSpace.of_study(study)
        stride = -(-len(space) // MAX_PREDICTED)
        table = space.table if stride == 1 else space.table.take(np.arange(0, len(space), stride))
        predicted = estimate(study.workload, table)
    except AutotuneError:
        return None
    level = next((float(t.estimate.level) for t in reversed(trials) if t.estimate is not None), 1.0)
    speed = np.asarray(predicted.tokens_per_s, dtype=float) / level
    return PredictedSpace(
        table=table,
        tokens_per_s=speed,
        fits=fits(predicted),
        value=speed * (1.0 - np.asarray(predicted.oom_probability, dtype=float)),
        total=len(space),
    )
