"""Figures of a result in Python, by name.

    result.plot("best_so_far")            the figure; a notebook shows it
    result.plot.best_so_far()             the same, with tab completion
    list(result.plot)                     the names of the figures that this result has data for
    result.plot("budget").save("b.svg")   its drawing; .html with its words, .csv its data

What draws them is registered under `autotune.views` (`autotune.registry`), because results know nothing of reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from autotune.errors import NotFoundError
from autotune.registry import VIEWS, load
from autotune.results.figure import Figure
from autotune.spec.checks import nearest

if TYPE_CHECKING:
    from autotune.results.result import Result


class ResultView(Protocol):
    """What shows a result; registered under `autotune.views`."""

    def plots(self) -> Mapping[str, Callable[[Result], Figure | None]]:
        """Figures by name; None where the result has no data for one."""
        ...

    def summary_html(self, result: Result) -> str:
        """The result in a few lines of HTML, for a notebook."""
        ...


class Plots:
    """The figures of one result: `plots(name)` or `plots.NAME()`; iterating gives the names of those that have data."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def __call__(self, name: str) -> Figure:
        """The figure of that name.

        Raises `NotFoundError` for an unknown name, or when the result has no data for the figure.
        """
        makers = result_view().plots()
        if name not in makers:
            names = ", ".join(makers)
            raise NotFoundError(f"no figure is called {name!r}", remedy=nearest(name, makers) or f"figures: {names}")
        plot = makers[name](self._result)
        if plot is None:
            having = ", ".join(self) or "none yet"
            raise NotFoundError(
                f"study {self._result.record.id} has no data for the figure {name!r}",
                remedy=f"figures that it has data for: {having}",
            )
        return plot

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name.startswith("_") or name not in result_view().plots():
            raise AttributeError(f"a result has no figure {name!r}; figures: {', '.join(result_view().plots())}")
        return lambda: self(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, make in result_view().plots().items() if make(self._result) is not None)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *result_view().plots()]

    def __repr__(self) -> str:
        return f"Plots({', '.join(self)})"


def result_view() -> ResultView:
    """What shows results in a notebook."""
    view: ResultView = load(VIEWS, "notebook")()
    return view
