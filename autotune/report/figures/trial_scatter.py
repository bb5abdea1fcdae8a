"""Trials as points: predicted against measured speed and peak memory, and speed against memory with
the Pareto front."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.report.figures.source import (
    CONFIG,
    MEASURED,
    MEMORY,
    PREDICTED,
    TRIAL,
    FigureSource,
    mark_sentences,
    omission_sentence,
    tooltip,
)
from autotune.report.findings import prediction_errors
from autotune.report.reward_tables import cost_label
from autotune.report.svg.axes import Axis, Line, Point, plot
from autotune.report.svg.canvas import byte_ticks, ticks
from autotune.report.terminal import format_bytes, format_count
from autotune.results.figure import Column, Figure, table_of
from autotune.results.rankings import merits_document, pareto
from autotune.reward import tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label
from autotune.spec.texts.as_text import bytes_cell

Pair = tuple[float, float, Trial]
"""(predicted, measured, trial)"""
PREDICTED_MEMORY = Column(name="predicted_peak_memory_bytes", head="predicted", show=bytes_cell)
RATIO = Column(
    name="measured_over_predicted", head="measured / predicted", show=lambda value: f"{value:.2f}"
)
_EXACT_LINE = "On the dashed line the prediction is exact; above it the measurement is higher."
MAX_PREDICTED_RATIO = 1.6
"""predictions beyond this factor above the highest measurement are drawn at the edge, so that they
do not compress all other points"""
_PROXIES = "Each dot is a proxy, so both figures are for the smaller job, not for the target."


def predicted_measured(source: FigureSource) -> Figure | None:
    """Return the figure of speed, predicted when the trial was proposed against measured; None
    without trials."""
    return _prediction_figure(
        source,
        [
            (float(t.estimate.tokens_per_s), tokens_per_s(t), t)
            for t in source.searched
            if t.estimate is not None
        ],
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
    """Return the figure of the highest peak memory of any rank, predicted against measured; None
    without trials."""
    return _prediction_figure(
        source,
        [
            (float(t.estimate.peak_memory_bytes), t.measurement.peak_memory_bytes, t)
            for t in source.searched
            if t.estimate is not None
            and t.measurement is not None
            and t.measurement.peak_memory_bytes
        ],
        name="predicted_measured_memory",
        title="Predicted against measured: memory",
        shows="Highest peak memory of any rank, predicted and measured. Trials that ran out of memory have no measured peak and are not shown.",
        error=("memory", "Median error"),
        columns=(PREDICTED_MEMORY, MEMORY),
        axis="peak memory",
        tick_values=byte_ticks,
        from_zero=False,
        description="Predicted against measured memory, one dot per trial",
    )


def _prediction_figure(
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
    """Return a figure of predicted against measured values; None without pairs. `error`: (key in
    `prediction_errors`, its description). `columns`: of predicted and measured values."""
    if not pairs:
        return None
    trials = [t for _, _, t in pairs]
    median = prediction_errors(trials).get(error[0])
    error_sentence = f" {error[1]}: {median:.0%}." if median is not None else ""
    drawn = {t.number for t in source.thinned(trials)}
    show = columns[0].show
    limit = max(
        min(max(x for x, _, _ in pairs), MAX_PREDICTED_RATIO * max(y for _, y, _ in pairs)),
        max(y for _, y, _ in pairs),
    )
    num_at_edge = sum(x > limit for x, _, _ in pairs)
    dots = (
        "dot with higher predictions is" if num_at_edge == 1 else "dots with higher predictions are"
    )
    edge_sentence = f" {num_at_edge} {dots} at the right edge." if num_at_edge else ""
    points = [
        Point(
            x=min(x, limit),
            y=y,
            kind=source.kind(t),
            title=tooltip(t, f"predicted {show(x)}", f"measured {show(y)}"),
        )
        for x, y, t in pairs
        if t.number in drawn
    ]
    points.sort(key=lambda p: p.kind == "best")
    high = 1.08 * limit
    low = 0.0 if from_zero else max(0.0, 0.9 * min(min(x, y) for x, y, _ in pairs))
    return Figure(
        name=name,
        title=title,
        shows=f"{shows}{error_sentence}{edge_sentence}{omission_sentence(len(drawn), len(pairs))}",
        how_to_read=" ".join(
            [
                _EXACT_LINE,
                *([_PROXIES] if source.result.record.study.at_hand is not None else []),
                *mark_sentences(points),
            ]
        ),
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


def pareto_front(source: FigureSource) -> Figure | None:
    """Return the figure of speed against peak memory with the Pareto front; None for fewer than two
    measured configs."""
    workload = source.result.record.study.workload
    front = {t.number: t for t in pareto(source.result)}
    searched = [t for t in source.searched if t.purpose is not TrialPurpose.PROXY]
    peaks_and_trials = [(peak, t) for t in searched if (peak := t.peak_memory_bytes) is not None]
    if len(peaks_and_trials) < 2:
        return None
    shown = {t.number for t in source.thinned([t for _, t in peaks_and_trials])} | set(front)
    lowest = min(peak for peak, _ in peaks_and_trials)
    points = [
        Point(
            x=peak,
            y=tokens_per_s(t),
            kind=_kind(source, t, is_front=t.number in front),
            title=tooltip(t, f"{format_count(tokens_per_s(t))} tokens/s", format_bytes(peak)),
        )
        for peak, t in peaks_and_trials
        if t.number in shown
    ]
    points.sort(key=lambda p: ("soft", "dot", "base", "front", "best").index(p.kind))
    front_steps, top = [], 0.0
    for peak, t in sorted(peaks_and_trials, key=lambda pair: (pair[0], -tokens_per_s(pair[1]))):
        if t.number in front and tokens_per_s(t) > top:
            top = tokens_per_s(t)
            front_steps.append((peak, top))
    rows = []
    for t in sorted(front.values(), key=lambda t: -tokens_per_s(t)):
        merits = merits_document(t, workload)
        rows.append(
            (
                t.number,
                config_label(t.config),
                tokens_per_s(t),
                t.peak_memory_bytes,
                merits.get("memory_headroom"),
                merits.get("stability"),
                cost_label(merits["cost_of_million_tokens"], merits["cost_unit"]) if merits else "",
            )
        )
    return Figure(
        name="pareto_front",
        title="Pareto front",
        shows="Tokens per second against the highest peak memory of any rank. No other measured config is at least as good as a config on the Pareto front in speed, stability, free memory and cost."
        + omission_sentence(len(points), len(peaks_and_trials)),
        how_to_read="Higher is faster, and further left needs less "
        "memory. Filled dots are on the Pareto front; the line joins the configs that are fastest for their memory. Pale dots are configs that another config beats, or that lost to another config when both were re-measured. A dot on the Pareto front but below the line is more stable or cheaper.",
        svg=plot(
            points,
            [Line(points=front_steps, stepped=True)],
            x=Axis(
                label="highest peak memory of any rank",
                format=format_bytes,
                low=0.9 * lowest,
                ticks=byte_ticks,
            ),
            y=Axis(label="tokens per second", format=format_count),
            description="Speed against memory of each measured config, with the Pareto front",
        ),
        table=table_of(
            (
                TRIAL,
                CONFIG,
                MEASURED,
                MEMORY,
                Column(name="memory_free_share", head="memory free", show=lambda v: f"{v:.0%}"),
                Column(name="stability", head="stability", show=lambda v: f"{v:.2f}"),
                Column(name="cost_per_million_tokens", head="per million tokens"),
            ),
            rows,
        ),
    )


def _kind(source: FigureSource, trial: Trial, *, is_front: bool) -> str:
    """Return the kind of a trial's mark: as in other figures for the best trial and the baseline,
    front on the Pareto front, otherwise soft."""
    kind = source.kind(trial)
    if kind in ("best", "base"):
        return kind
    return "front" if is_front and trial.number not in source.result.below else "soft"
