"""The figures of a study, for its report and for notebooks.

    source.py                 data for figures                            figure_html.py          a figure as HTML, with its data
    speed_over_study.py       best so far over trials and over time       figure_markdown.py      a figure as Markdown
    step_and_memory_parts.py  step time and memory by cause               trial_scatter.py        predicted against measured, speed against memory
    loss_curves.py            loss against the reference                  budget_and_timeline.py  limits, trials on ranks
    feasible_map.py           two knobs as a grid, the best of each cell  knobs_and_speed.py      importance of knobs, trials across knobs
    one_trial.py              the figures on a trial's page               running_steps.py        steps of the running trials, and time left

`FIGURES` has all figures of a study in display order. Names never change, because files and
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
"""function of each figure by name; returns None if there is no data"""


def figures_of(
    result: Result, steps: Mapping[int, StepSeries] = MappingProxyType({})
) -> tuple[Figure, ...]:
    """Return the figures for which the trials have data, in display order. `steps`: series of the
    running trials, by number."""
    source = FigureSource(result=result, steps=steps)
    return tuple(figure for draw in FIGURES.values() if (figure := draw(source)) is not None)


def plot_functions() -> Mapping[str, Callable[[Result], Figure | None]]:
    """Return the figure functions of a result by name, for `Result.plot`. Figures of one result
    share their source."""
    sources: dict[int, FigureSource] = {}
    """sources by the id of their result; a source keeps its result alive, so ids stay unique"""

    def of_result(
        draw: Callable[[FigureSource], Figure | None],
    ) -> Callable[[Result], Figure | None]:
        return lambda result: draw(sources.setdefault(id(result), FigureSource(result=result)))

    return {name: of_result(draw) for name, draw in FIGURES.items()}
