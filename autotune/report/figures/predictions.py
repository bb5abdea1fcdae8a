"""Predicted against measured: speed and peak memory of each trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.report.figures.source import (
    CONFIG,
    MEASURED,
    MEMORY,
    PREDICTED,
    TRIAL,
    FigureSource,
    left_out,
    title_of,
)
from autotune.report.findings import prediction_errors
from autotune.report.svg.axes import Axis, Line, Point, plot
from autotune.report.svg.canvas import byte_ticks, ticks
from autotune.report.terminal import format_bytes
from autotune.results.figure import Column, Figure, table_of
from autotune.reward import tokens_per_s
from autotune.spec import Trial, config_label

Pair = tuple[float, float, Trial]
"""(predicted, measured, trial)"""
PREDICTED_MEMORY = Column(name="predicted_peak_memory_bytes", head="predicted", show=format_bytes)
RATIO = Column(name="measured_over_predicted", head="measured / predicted", show=lambda value: f"{value:.2f}")
_HOW = "On the dashed line the prediction is exact; above it the measurement is higher. "
FAR = 1.6
"""times the highest measurement: predictions beyond that are drawn at the edge, so that one does not flatten all others"""
_MARKS = "The large dot is the best trial, the square the baseline."
_PROXIES = "Each dot is a proxy: both figures are for the smaller job, not for the target."


def predicted_measured(source: FigureSource) -> Figure | None:
    """Speed: predicted when the trial was proposed, and measured."""
    return _figure(
        source,
        [(float(t.estimate.tokens_per_s), tokens_per_s(t), t) for t in source.searched if t.estimate is not None],
        name="predicted_measured",
        title="Predicted against measured: speed",
        shows="Tokens per second over all ranks of a trial: predicted when the trial was proposed, and measured.",
        error=("step_time", "Median error of the step time"),
        columns=(PREDICTED, MEASURED),
        axis="tokens/s",
        tick_values=ticks,
        from_zero=True,
        description="Predicted against measured throughput, one dot per trial",
    )


def predicted_measured_memory(source: FigureSource) -> Figure | None:
    """Highest peak memory of any rank."""
    return _figure(
        source,
        [
            (float(t.estimate.peak_memory_bytes), t.measurement.peak_memory_bytes, t)
            for t in source.searched
            if t.estimate is not None and t.measurement is not None and t.measurement.peak_memory_bytes
        ],
        name="predicted_measured_memory",
        title="Predicted against measured: memory",
        shows="Highest peak memory of any rank in bytes, predicted and measured. Trials that ran out of memory have no measured peak and are not shown.",
        error=("memory", "Median error"),
        columns=(PREDICTED_MEMORY, MEMORY),
        axis="peak memory",
        tick_values=byte_ticks,
        from_zero=False,
        description="Predicted against measured memory, one dot per trial",
    )


def _figure(
    source: FigureSource,
    pairs: Sequence[Pair],
    *,
    name: str,
    title: str,
    shows: str,
    error: tuple[str, str],
    columns: tuple[Column, Column],
    axis: str,
    tick_values: Callable[[float, float, int], list[float]],
    from_zero: bool,
    description: str,
) -> Figure | None:
    """`error`: (its name in `prediction_errors`, what it is called); `columns`: predicted and measured."""
    if not pairs:
        return None
    trials = [t for _, _, t in pairs]
    median = prediction_errors(trials).get(error[0])
    said = f" {error[1]}: {median:.0%}." if median is not None else ""
    drawn = {t.number for t in source.thinned(trials)}
    show = columns[0].show
    most = max(min(max(x for x, _, _ in pairs), FAR * max(y for _, y, _ in pairs)), max(y for _, y, _ in pairs))
    beyond = sum(x > most for x, _, _ in pairs)
    at_edge = f" {beyond} with higher predictions {'is' if beyond == 1 else 'are'} at the right edge." if beyond else ""
    points = [
        Point(
            x=min(x, most), y=y, kind=source.kind(t), title=title_of(t, f"predicted {show(x)}", f"measured {show(y)}")
        )
        for x, y, t in pairs
        if t.number in drawn
    ]
    points.sort(key=lambda p: p.kind == "best")
    high = 1.08 * most
    low = 0.0 if from_zero else max(0.0, 0.9 * min(min(x, y) for x, y, _ in pairs))
    return Figure(
        name=name,
        title=title,
        shows=f"{shows}{said}{at_edge}{left_out(len(drawn), len(pairs))}",
        how_to_read=_HOW + (_MARKS if source.result.record.study.at_hand is None else _PROXIES),
        svg=plot(
            points,
            [Line(points=[(low, low), (high, high)], kind="dashed")],
            x=Axis(label=f"predicted {axis}", format=show, low=low, high=high, ticks=tick_values),
            y=Axis(label=f"measured {axis}", format=show, low=low, high=high, ticks=tick_values),
            description=description,
        ),
        table=table_of(
            (TRIAL, CONFIG, *columns, RATIO),
            [(t.number, config_label(t.config), x, y, y / x if x else None) for x, y, t in pairs],
        ),
    )
