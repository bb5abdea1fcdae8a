"""The figures on a trial's page: its steps, its loss, and how its time and memory are spent."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.report.figures.loss_curves import loss_axis
from autotune.report.figures.step_and_memory_parts import (
    MEMORY_NAMES,
    memory_bars,
    part_names,
    rank_parts,
)
from autotune.report.findings import time_parts
from autotune.report.svg.axes import Axis, Line, Point, plot
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.svg.canvas import byte_ticks, time_ticks
from autotune.report.terminal import PART_NAMES, format_bytes, format_duration
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import Trial
from autotune.spec.texts.as_text import bytes_cell, duration_cell

STEP = Column(name="step", head="step")
STEP_TIME = Column(name="step_time_s", head="step time", show=duration_cell)
CAUSE = Column(name="cause", head="", is_number=False)
MEASURED = "measured"
"""name of a bar's part that shows one measured number"""
MAX_RANKS = 32
"""maximum number of ranks whose peaks are shown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSource:
    """The data for a trial's figures."""

    trial: Trial
    """the trial as it was measured"""
    steps: Mapping[str, Sequence[float]]
    """series of its last attempt: step (from 0, with warm-up), step_time_s, loss, grad_norm; empty
    lists if no step was reported"""
    warmup_steps: int
    """number of steps at the start that do not count"""
    capacity_bytes: float
    """memory of one GPU"""


def trial_figures(source: TrialSource) -> tuple[Figure, ...]:
    """Return the figures for which the trial has data, in display order."""
    figures = (
        _step_times(source),
        _losses(source),
        _memory_over_time(source),
        _time_by_parts(source),
        rank_parts(source.trial),
        _memory_by_parts(source),
        _grad_norms(source),
    )
    return tuple(figure for figure in figures if figure is not None)


def _step_times(source: TrialSource) -> Figure | None:
    steps, times = source.steps["step"], source.steps["step_time_s"]
    if not steps:
        return None
    counted = [
        time_s for step, time_s in zip(steps, times, strict=True) if step >= source.warmup_steps
    ]
    last = max(1.0, max(steps))
    lines = []
    if counted:
        median = statistics.median(counted)
        lines.append(
            Line(
                points=[(0.0, median), (last, median)],
                kind="dashed",
                label=f"median {format_duration(median)}",
            )
        )
    if source.trial.estimate is not None:
        predicted = float(source.trial.estimate.step_time_s)
        lines.append(
            Line(
                points=[(0.0, predicted), (last, predicted)],
                kind="dotted",
                label=f"predicted {format_duration(predicted)}",
            )
        )
    points = [
        Point(
            x=step,
            y=time_s,
            kind="soft" if step < source.warmup_steps else "dot",
            title=f"step {step:.0f}: {format_duration(time_s)}",
        )
        for step, time_s in zip(steps, times, strict=True)
    ]
    return Figure(
        name="step_times",
        title="Step times",
        shows="Duration of each optimizer step on the slowest rank.",
        how_to_read=f"Each dot is a step; pale dots (the first {source.warmup_steps}) are warm-up and do not count. A triangle marks a step that is off the scale and shows its time. Dots on one level mean a reliable measurement; a drift or two levels mean that the machine was also doing something else.",
        svg=plot(
            points,
            lines,
            x=_step_axis(last),
            y=Axis(label="step time", format=format_duration, ticks=time_ticks),
            description="Step times of the trial",
            legend=True,
        ),
        table=table_of(
            (STEP, STEP_TIME),
            [(int(step), time_s) for step, time_s in zip(steps, times, strict=True)],
        ),
    )


def _losses(source: TrialSource) -> Figure | None:
    steps, losses = source.steps["step"], source.steps["loss"]
    m = source.trial.measurement
    first = source.warmup_steps
    reference = (
        [(float(first + i), loss) for i, loss in enumerate(m.reference_losses)]
        if m is not None
        else []
    )
    losses_by_step = list(zip(steps, losses, strict=True))
    lines = [
        Line(points=_finite(reference), kind="dashed", label="fp32 reference"),
        Line(points=_finite(losses_by_step), kind="line", label="this trial"),
    ]
    shown_losses = [loss for line in lines for _, loss in line.points]
    if not lines[1].points:
        return None
    reference_by_step = dict(reference)
    return Figure(
        name="loss",
        title="Loss",
        shows="Training loss in nats per token at each optimizer step, averaged over all ranks.",
        how_to_read="The loss should fall like the fp32 reference, if there is one. If the loss rises above the reference, the config trades accuracy for speed. "
        "Steps without a finite loss are not drawn.",
        svg=plot(
            [],
            [line for line in lines if line.points],
            x=_step_axis(max(steps)),
            y=loss_axis(shown_losses),
            description="Loss of the trial",
            legend=True,
        ),
        table=table_of(
            (
                STEP,
                Column(name="loss_nats_per_token", head="loss", show=_four_decimals),
                Column(name="reference_loss_nats_per_token", head="reference", show=_four_decimals),
            ),
            [
                (int(step), loss if math.isfinite(loss) else None, reference_by_step.get(step))
                for step, loss in losses_by_step
            ],
        ),
    )


def _grad_norms(source: TrialSource) -> Figure | None:
    pairs = list(zip(source.steps["step"], source.steps["grad_norm"], strict=True))
    points = _finite(pairs)
    if not points:
        return None
    return Figure(
        name="gradient_norm",
        title="Gradient norm",
        shows="Global gradient norm of each optimizer step, before clipping.",
        how_to_read="Spikes that the baseline does not have at the same step are a sign of instability.",
        svg=plot(
            [],
            [Line(points=points)],
            x=_step_axis(max(step for step, _ in pairs)),
            y=Axis(label="gradient norm", format=lambda value: f"{value:.3g}"),
            description="Gradient norm of the trial",
        ),
        table=table_of(
            (STEP, Column(name="grad_norm", head="gradient norm", show=_four_decimals)),
            [(int(step), norm if math.isfinite(norm) else None) for step, norm in pairs],
        ),
    )


def _memory_over_time(source: TrialSource) -> Figure | None:
    m = source.trial.measurement
    if m is None or not m.step_peak_memory_bytes:
        return None
    ends = list(itertools.accumulate(m.step_times_s))[: len(m.step_peak_memory_bytes)]
    points = list(zip(ends, m.step_peak_memory_bytes, strict=True))
    lines = [Line(points=[(0.0, points[0][1]), *points], stepped=True, label="peak so far")]
    if source.trial.estimate is not None:
        predicted = float(source.trial.estimate.peak_memory_bytes)
        lines.append(
            Line(
                points=[(0.0, predicted), (ends[-1], predicted)],
                kind="dotted",
                label=f"predicted {format_bytes(predicted)}",
            )
        )
    return Figure(
        name="memory_over_time",
        title="Memory over time",
        shows="Highest peak memory of any rank since the trial began, at the end of each step. The time axis starts after warm-up.",
        how_to_read="Peak memory should level off soon after the first steps. A line that keeps rising means a leak or growing fragmentation, so a longer run may run out of memory.",
        svg=plot(
            [],
            lines,
            x=Axis(label="training time after warm-up", format=format_duration, ticks=time_ticks),
            y=Axis(label="peak memory so far", format=format_bytes, ticks=byte_ticks),
            description="Peak memory of the trial over time",
            legend=True,
        ),
        table=table_of(
            (
                Column(name="elapsed_s", head="after", show=duration_cell),
                Column(name="peak_memory_bytes", head="peak memory", show=bytes_cell),
            ),
            points,
        ),
    )


def _time_by_parts(source: TrialSource) -> Figure | None:
    trial = source.trial
    bars: list[tuple[str, dict[str, float]]] = []
    if trial.estimate is not None:
        bars.append(("predicted", trial.estimate.time_parts_s.to_dict()))
    (parts,), source_name = time_parts(trial)
    if parts and source_name == "profiled":
        bars.append((source_name, parts))
    if not bars:
        return None
    names = {**part_names([parts for _, parts in bars]), MEASURED: "measured step"}
    if trial.measured is not None:
        bars.append((MEASURED, {MEASURED: trial.measured.step_time_s}))
    return Figure(
        name="time_by_parts",
        title="Where step time goes",
        shows="Time in one optimizer step by cause, as predicted by the cost model"
        + (
            " and as profiled in the trial."
            if source_name == "profiled"
            else "; this trial was not profiled."
        ),
        how_to_read="The number next to a bar is the bar's whole length. Communication hidden behind computation is not shown.",
        svg=stacked_bars(
            [
                Bar(label=label, parts=parts, note=format_duration(sum(parts.values())))
                for label, parts in bars
            ],
            names=names,
            number=format_duration,
            x_label="time in one optimizer step",
            description="The trial's step time by part",
            tick_values=time_ticks,
        ),
        table=table_of(
            (
                CAUSE,
                *(Column(name=f"{label}_s", head=label, show=duration_cell) for label, _ in bars),
            ),
            [(word, *(parts.get(name, 0.0) for _, parts in bars)) for name, word in names.items()],
        ),
    )


def _memory_by_parts(source: TrialSource) -> Figure | None:
    trial, m = source.trial, source.trial.measurement
    peak = m.peak_memory_bytes if m is not None else None
    ranks = m.rank_peak_memory_bytes if m is not None else ()
    bars, rows = [], []
    if trial.estimate is not None:
        parts = {
            name: float(value)
            for name, value in trial.estimate.memory_parts_bytes.to_dict().items()
        }
        bars.append(
            Bar(label="predicted", parts=parts, mark=peak, note=format_bytes(sum(parts.values())))
        )
        rows += [(f"predicted: {PART_NAMES[name]}", value) for name, value in parts.items()]
    measured = {f"rank {rank}": float(value) for rank, value in enumerate(ranks[:MAX_RANKS])}
    if len(measured) < 2:
        measured = {"measured": peak} if peak is not None else {}
    bars += [
        Bar(label=label, parts={MEASURED: value}, note=format_bytes(value))
        for label, value in measured.items()
    ]
    rows += [(f"peak: {label}", value) for label, value in measured.items()]
    if not bars:
        return None
    capacity = (m.memory_capacity_bytes if m is not None else None) or source.capacity_bytes
    svg, capacity_sentence = memory_bars(
        bars,
        {**MEMORY_NAMES, MEASURED: "measured peak"},
        capacity_bytes=capacity,
        x_label="peak memory of a rank",
        description="Predicted parts and measured memory peaks, against the capacity",
    )
    return Figure(
        name="memory_by_parts",
        title="Where the memory goes",
        shows="Peak memory: predicted by cause for the rank with the highest peak"
        + (
            f", and measured for each rank.{capacity_sentence}"
            if measured
            else f"; no peak was measured.{capacity_sentence}"
        ),
        how_to_read="The tick across the first bar is the highest measured peak of any rank. Very different peaks mean uneven pipeline stages."
        if measured
        else "The number next to the bar is the bar's whole length.",
        svg=svg,
        table=table_of(
            (CAUSE, Column(name="bytes", head="memory", show=bytes_cell)),
            [*rows, ("capacity", capacity)],
        ),
    )


def _step_axis(last: float) -> Axis:
    return Axis(
        label="optimizer step",
        format=lambda step: f"{step:.0f}",
        low=-0.02 * last,
        high=1.02 * last,
        is_whole=True,
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def _four_decimals(value: float) -> str:
    return f"{value:.4f}"
