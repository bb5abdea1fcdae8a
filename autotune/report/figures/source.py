"""What figures are drawn from: a study's result, and what the cost model says of its space.

Figures show at most `MAX_MARKS` trials: more can't be told apart. Left-out trials are spread
evenly; the best, the baseline, each improvement and what failed last stay. A figure's table holds
all of them.

The knobs that vary in a study, with their values.

The feasible set of a study with what the cost model says of each config.

    N    configs in the space, at most `LISTED`; of more, an even sample

Step times are at the level that the study's own trials showed (`Estimate.level` of the latest
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
"""step, step_time_s, loss, grad_norm of an attempt so far"""
MAX_MARKS = 500
"""trials that a figure shows"""

TRIAL = Column(name="trial", head="trial")
CONFIG = Column(name="config", head="config", is_number=False)
STATUS = Column(
    name="status", head="status", is_number=False, show=lambda status: str(status).lower()
)
MEASURED = Column(name="tokens_per_s", head="measured, tokens/s", show=count_cell, bar_of=0.0)
PREDICTED = Column(name="predicted_tokens_per_s", head="predicted, tokens/s", show=count_cell)
ELAPSED = Column(name="elapsed_s", head="after", show=duration_cell)
MEMORY = Column(name="peak_memory_bytes", head="peak memory", show=bytes_cell)
"""columns that several figures have"""


@dataclass(frozen=True, kw_only=True)
class FigureSource:
    """Everything that figures are drawn from."""

    result: Result
    steps: Mapping[int, StepSeries] = field(default_factory=dict)
    """of the running trials, by number: `autotune.ports.StudyReader.steps`"""

    @cached_property
    def space(self) -> PredictedSpace | None:
        """The feasible set; None where it can't be listed here, e.g. because its trainer is not
        installed."""
        return predicted_space(self.result.record.study, self.result.trials)

    @property
    def searched(self) -> list[Trial]:
        """Measured trials, each config once, and all proxies."""
        return [
            t
            for t in self.result.measured
            if t.purpose is TrialPurpose.PROXY or t.number in self.counted
        ]

    @cached_property
    def counted(self) -> frozenset[int]:
        """Numbers of the trials that hold their configs' figures: of those that measured one
        config, one."""
        return frozenset(t.number for t in counted_once(self.result.shown))

    @property
    def own(self) -> list[Trial]:
        """Trials of the study's own job: a proxy's speed is that of a smaller one."""
        return [t for t in self.result.shown if t.purpose is not TrialPurpose.PROXY]

    def elapsed_s(self, moment: datetime | None) -> float | None:
        """Seconds from the start of the study, pauses included."""
        start = self.result.record.started_at
        if start is None:
            start = min((t.started_at for t in self.result.shown if t.started_at), default=None)
        return (
            None if moment is None or start is None else max(0.0, (moment - start).total_seconds())
        )

    def kind(self, trial: Trial) -> str:
        """The kind of a trial's mark; soft is that of one that was stopped, because it cannot
        win."""
        best = self.result.best
        if best is not None and trial.number == best.number:
            return "best"
        if trial.purpose is TrialPurpose.BASELINE:
            return "base"
        return "soft" if trial.status is TrialStatus.STOPPED else "dot"

    def thinned(self, trials: Sequence[Trial]) -> list[Trial]:
        """At most about `MAX_MARKS` of the trials, in their order."""
        if len(trials) <= MAX_MARKS:
            return list(trials)
        each = -(-len(trials) // MAX_MARKS)
        best = self.result.best.number if self.result.best else None
        top, kept = float("-inf"), []
        for index, trial in enumerate(trials):
            speed = tokens_per_s(trial) if trial.is_measured else float("-inf")
            is_better, top = speed > top, max(top, speed)
            if (
                is_better
                or index % each == 0
                or trial.purpose is TrialPurpose.BASELINE
                or trial.number == best
            ):
                kept.append(trial)
        return kept


OF_POINTS = {
    "soft": "Pale dots were stopped early, because they cannot win.",
    "best": "The large dot is the best trial.",
    "base": "The square is the baseline.",
    "fail": "Crosses at the bottom: failed.",
}
"""what a mark means, by its kind"""


def marked(points: Sequence[Point]) -> list[str]:
    """What the marks mean that are drawn, in sentences."""
    kinds = {p.kind for p in points}
    return [words for kind, words in OF_POINTS.items() if kind in kinds]


def title_of(trial: Trial, *facts: str) -> str:
    """What the pointer shows of a trial."""
    return f"trial {trial.number}: {config_label(trial.config)}" + "".join(
        f", {fact}" for fact in facts
    )


def left_out(shown: int, of: int) -> str:
    """That a figure does not show all trials, as a sentence; empty where it does."""
    return (
        f" {shown:,} of {of:,} runs are drawn; the data table has all of them."
        if shown < of
        else ""
    )


def varying(source: FigureSource) -> dict[str, tuple[Any, ...]]:
    """Knobs with two values or more among the space and the trials, in their usual order."""
    found: dict[str, set[Any]] = {}
    for trial in source.result.shown:
        for name, value in trial.config.values().items():
            found.setdefault(name, set()).add(value)
    if (space := source.space) is not None:
        for name, knob in space.table.knobs.items():
            column = set(space.table.column(name).tolist())
            found.setdefault(name, set()).update(knob.decode(code) for code in column)
    return {
        name: tuple(sorted(values, key=order_of))
        for name, values in found.items()
        if len(values) > 1
    }


def word_of(value: Any) -> str:
    """A knob's value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)


def order_of(value: Any) -> tuple[bool, float, str]:
    """The key that sorts values: numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)


LISTED = 50_000
"""configs that are predicted; a map of more looks the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpace:
    """Legal configs as columns, with predictions of shape (N,)."""

    table: ConfigTable
    tokens_per_s: NDArray[np.float64]
    """of the whole job"""
    fits: NDArray[np.bool_]
    """whether it is expected to fit into memory"""
    value: NDArray[np.float64]
    """by which a plan ranks those that fit: tokens/s times the chance to fit"""
    total: int
    """configs in the space, also where only a sample of them is here"""

    @property
    def optimum_tokens_per_s(self) -> float | None:
        """What is predicted of the config that a plan ranks first."""
        return (
            float(self.tokens_per_s[np.argmax(np.where(self.fits, self.value, -1.0))])
            if self.fits.any()
            else None
        )


def predicted_space(study: Study, trials: Sequence[Trial]) -> PredictedSpace | None:
    """The space of a study, predicted by the constants that ship; None where it can't be listed
    here."""
    try:
        space = SearchSpace.of_study(study)
        each = -(-len(space) // LISTED)
        table = space.table if each == 1 else space.table.take(np.arange(0, len(space), each))
        found = estimate(study.workload, table)
    except AutotuneError:
        return None
    level = next((float(t.estimate.level) for t in reversed(trials) if t.estimate is not None), 1.0)
    speed = np.asarray(found.tokens_per_s, dtype=float) / level
    return PredictedSpace(
        table=table,
        tokens_per_s=speed,
        fits=fits(found),
        value=speed * (1.0 - np.asarray(found.oom_probability, dtype=float)),
        total=len(space),
    )
