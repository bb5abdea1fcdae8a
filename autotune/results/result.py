"""The result of a study: its trials, the winner with its speedup, its figures, and its trials as a
pandas DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from autotune.errors import MissingExtraError, NotFoundError
from autotune.ports import StudyRecord
from autotune.registry import VIEWS, load
from autotune.results.figure import Figure
from autotune.spec import Trial, TrialStatus
from autotune.spec.checks import nearest
from autotune.spec.runs.trial_row import TRIAL_COLUMNS, trial_row
from autotune.spec.texts.as_text import format_speedup, number_of
from autotune.study.controller import TooNoisy

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """The result of a running or finished study. A notebook shows the result as a card."""

    record: StudyRecord
    """the study with its status, message, and `record.result`: phase, finals, stop reason, notes"""
    trials: tuple[Trial, ...]
    """all trials as measured, by number"""
    shown: tuple[Trial, ...]
    """the same trials with each config's corrected figure (`config_figures`), for display; without
    infeasible trials, which older releases listed"""
    best: Trial | None
    """the named winner, or the best trial so far, from `shown`. After the finals, the measurement
    and reward come from the finals"""
    baseline: Trial | None
    """the baseline trial from `shown`, if it could be measured; after the finals, with the
    measurement from the finals"""
    speedup: float | None
    """tokens per second of the best config relative to the baseline's; None without a measured
    baseline, or if the machine is too noisy"""
    unmeasured_baseline: Trial | None = None
    """the baseline if it could not be measured, with its prediction: the failed trial, or a trial
    that says why the baseline cannot run here"""
    speedup_low: float | None = None
    """lower end of the speedup's 95% CI, which includes the noise between runs and the selection
    among several configs"""
    speedup_high: float | None = None
    """upper end of the speedup's 95% CI"""
    below: Mapping[int, str] = field(default_factory=dict)
    """for each trial with a higher speed than `best`, the reason why the trial does not rank above
    `best` (`standing_notes`)"""
    tied_with: tuple[int, ...] = ()
    """numbers of the trials whose configs are statistically tied with the best"""
    final_rounds: int = 0
    """number of rounds in which the best config and the baseline were re-measured; 0 if they were
    measured once"""
    confirmed: tuple[Trial, ...] = ()
    """the trials of all re-measured configs from `shown`, best first"""
    infeasible: Mapping[str, int] = field(default_factory=dict)
    """number of configs that cannot run here, by reason: the rule, the trainer's limit, or what the
    runner lacks"""
    notes: tuple[str, ...] = ()
    """notes on the speedup"""
    too_noisy: TooNoisy | None = None
    """why no speedup can be claimed, with the distance between the baseline's runs"""
    is_left: bool = False
    """whether the study is waiting for a new controller because the last controller died"""

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials with a step time that can be trusted."""
        return tuple(t for t in self.shown if t.is_measured)

    @property
    def failed(self) -> tuple[Trial, ...]:
        """Trials that failed. A trial that was cancelled after a failed attempt is not among
        them."""
        return tuple(t for t in self.trials if t.status is TrialStatus.FAILED)

    @property
    def plot(self) -> Plots:
        """The figures: `result.plot("best_so_far")`, or `result.plot.best_so_far()`.
        `list(result.plot)` lists the figures that have data."""
        return Plots(self)

    def to_dataframe(self) -> DataFrame:
        """Return one row for each displayed trial (`shown`), indexed by number: knobs, status,
        measurement, estimate, reward, failure.

        Columns have units in their names and are the same as in `autotune store export`. Raises
        `MissingExtraError` without pandas.
        """
        return trial_frame(self.shown)

    def __repr__(self) -> str:
        record = self.record
        facts = [repr(record.study.name), str(record.status), number_of(len(self.shown), "run")]
        if self.best is not None:
            facts.append(f"best {self.best.config}")
        if self.too_noisy is not None:
            facts.append(str(self.too_noisy))
        elif self.speedup is not None:
            is_open = not record.status.is_terminal
            facts.append(
                format_speedup(self.speedup, self.speedup_low, self.speedup_high, is_open=is_open)
            )
        return f"Result({', '.join(facts)})"

    def _repr_html_(self) -> str:
        return result_view().summary_html(self)


def trial_frame(trials: Sequence[Trial]) -> DataFrame:
    """Return one row for each trial, indexed by its number; the columns are the same as in
    `autotune store export`. Raises `MissingExtraError` without pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a data frame needs pandas, which is not installed",
            remedy="install it with: pip install pandas",
        ) from error
    frame = pandas.DataFrame([trial_row(trial) for trial in trials], columns=list(TRIAL_COLUMNS))
    for name in ("created_at", "started_at", "ended_at"):
        frame[name] = pandas.to_datetime(frame[name], utc=True, format="ISO8601")
    return frame.set_index("number")


class ResultView(Protocol):
    """A view of results, registered under `autotune.views`."""

    def plots(self) -> Mapping[str, Callable[[Result], Figure | None]]:
        """Return the figures by name; None if the result has no data for one."""
        ...

    def summary_html(self, result: Result) -> str:
        """Return the result in a few lines of HTML, for a notebook."""
        ...


class Plots:
    """The figures of one result: `plots(name)` or `plots.NAME()`; iterating yields the names of
    figures with data."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def __call__(self, name: str) -> Figure:
        """Return the figure with this name. Raises `NotFoundError` for an unknown name, or if the
        result has no data for the figure."""
        makers = result_view().plots()
        if name not in makers:
            names = ", ".join(makers)
            raise NotFoundError(
                f"there is no figure {name!r}", remedy=nearest(name, makers) or f"figures: {names}"
            )
        plot = makers[name](self._result)
        if plot is None:
            available = ", ".join(self) or "none yet"
            raise NotFoundError(
                f"study {self._result.record.id} has no data for the figure {name!r}",
                remedy=f"the study has data for these figures: {available}",
            )
        return plot

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name.startswith("_") or name not in result_view().plots():
            raise AttributeError(
                f"a result has no figure {name!r}; figures: {', '.join(result_view().plots())}"
            )
        return lambda: self(name)

    def __iter__(self) -> Iterator[str]:
        return (
            name for name, make in result_view().plots().items() if make(self._result) is not None
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *result_view().plots()]

    def __repr__(self) -> str:
        return f"Plots({', '.join(self)})"


def result_view() -> ResultView:
    """Return the view that shows results in a notebook."""
    view: ResultView = load(VIEWS, "notebook")()
    return view
