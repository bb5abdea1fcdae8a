"""The figures of a study: the same in its report and in a notebook.

    source.py              what figures are drawn from                    figure_html.py        a figure as HTML, with its data
    speed_over_study.py    best so far over trials and over time          trial_scatter.py      predicted against measured, speed against memory
    step_and_memory_parts.py  where time and memory go                    budget_and_timeline.py  limits, trials on ranks
    loss_curves.py         loss against the reference
    feasible_map.py        two knobs as a grid, the best of each cell
    knobs_and_speed.py     importance of knobs, trials across knobs
    one_trial.py           those of one trial
    running_steps.py       steps of the running trials, and what is left

`FIGURES` names all of them, in the order in which they are shown. Names never change: files and
notebooks use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from autotune.report.figures.budget_and_timeline import budget_spent, trial_timeline
from autotune.report.figures.feasible_map import feasible_map
from autotune.report.figures.knobs_and_speed import knob_importance, parallel_coordinates
from autotune.report.figures.loss_curves import loss_curves
from autotune.report.figures.running_steps import running_steps
from autotune.report.figures.source import FigureSource, StepSeries
from autotune.report.figures.speed_over_study import best_so_far, best_so_far_over_time
from autotune.report.figures.step_and_memory_parts import (
    memory_parts,
    step_parts,
    winners_rank_parts,
)
from autotune.report.figures.trial_scatter import (
    pareto_front,
    predicted_measured,
    predicted_measured_memory,
)
from autotune.results.figure import Figure
from autotune.results.result import Result

FIGURES: Mapping[str, Callable[[FigureSource], Figure | None]] = {
    "best_so_far": best_so_far,
    "best_so_far_over_time": best_so_far_over_time,
    "running_steps": running_steps,
    "budget": budget_spent,
    "feasible_map": feasible_map,
    "step_parts": step_parts,
    "rank_parts": winners_rank_parts,
    "memory_parts": memory_parts,
    "knob_importance": knob_importance,
    "parallel_coordinates": parallel_coordinates,
    "pareto_front": pareto_front,
    "predicted_measured": predicted_measured,
    "predicted_measured_memory": predicted_measured_memory,
    "timeline": trial_timeline,
    "loss_reference": loss_curves,
}
"""Functions of all figures by name; each answers None while there is nothing to show."""


def figures_of(
    result: Result, steps: Mapping[int, StepSeries] = MappingProxyType({})
) -> tuple[Figure, ...]:
    """The figures that the trials so far allow, in the order in which they are shown. `steps`:
    those of the running trials, by number."""
    source = FigureSource(result=result, steps=steps)
    return tuple(figure for draw in FIGURES.values() if (figure := draw(source)) is not None)


def drawings() -> Mapping[str, Callable[[Result], Figure | None]]:
    """The figures of a result by name, for `Result.plot`. Those of one result share their
    source."""
    sources: dict[int, FigureSource] = {}
    """by the identity of their results, which they keep alive"""

    def of_result(
        draw: Callable[[FigureSource], Figure | None],
    ) -> Callable[[Result], Figure | None]:
        return lambda result: draw(sources.setdefault(id(result), FigureSource(result=result)))

    return {name: of_result(draw) for name, draw in FIGURES.items()}
