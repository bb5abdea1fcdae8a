"""The figures of a study: throughput by trial, prediction against measurement, where the time goes, memory."""

from __future__ import annotations

import math
from dataclasses import fields
from html import escape

from autotune.report.figures import Bar, Line, Point, plot, stacked_bars
from autotune.report.findings import best_so_far, prediction_errors, time_parts
from autotune.report.notes import note_of
from autotune.report.terminal import PART_COLOURS, PART_NAMES, format_bytes, format_count, format_duration
from autotune.results.answers import Result
from autotune.reward import tokens_per_s
from autotune.spec import MemoryParts, Trial, TrialPurpose, config_label

MAX_BARS = 40
"""trials in the memory figure"""
OVERLAPPED = "communication_overlapped"
"""communication hidden behind computation: no part of the step's time, so it has no place in a stacked bar"""


def study_figures(found: Result) -> list[str]:
    """The figures that the trials so far allow, as HTML."""
    return [figure for figure in (_throughput(found), _accuracy(found), _steps(found), _memory(found)) if figure]


def _title(trial: Trial, *facts: str) -> str:
    return f"trial {trial.number}: {config_label(trial.config)}" + "".join(f", {fact}" for fact in facts)


def _kind(found: Result, trial: Trial) -> str:
    if found.best is not None and trial.number == found.best.number:
        return "best"
    return "base" if trial.purpose is TrialPurpose.BASELINE else "dot"


def _throughput(found: Result) -> str:
    if not found.measured:
        return ""
    points = [
        Point(
            x=t.number,
            y=tokens_per_s(t),
            kind=_kind(found, t),
            title=_title(t, f"{format_count(tokens_per_s(t))} tokens/s"),
        )
        for t in found.measured
    ]
    points += [Point(x=t.number, y=0.0, kind="fail", title=_title(t, note_of(t))) for t in found.failed]
    lines = [Line(points=best_so_far(found.trials), stepped=True)]
    last = max(1.0, float(found.trials[-1].number))
    if found.baseline is not None:
        level = tokens_per_s(found.baseline)
        lines.append(Line(points=[(0.0, level), (last, level)], kind="dashed", label="default config"))
    figure = plot(
        points,
        lines,
        x_label="trial",
        y_label="tokens per second",
        x_format=lambda x: f"{x:.0f}",
        y_format=format_count,
        x_range=(-0.04 * last, 1.04 * last),
        whole_x=True,
        description="Measured throughput by trial, with the best so far",
    )
    caption = "Every measured trial, the best so far (line), the default config (square and dashes), failures (crosses at the bottom)."
    return _figure("Throughput by trial", figure, caption)


def _accuracy(found: Result) -> str:
    both = [t for t in found.measured if t.estimate is not None]
    if not both:
        return ""
    values = [(float(t.estimate.tokens_per_s), tokens_per_s(t), t) for t in both if t.estimate is not None]
    high = 1.08 * max(max(x, y) for x, y, _ in values)
    points = [
        Point(
            x=x,
            y=y,
            kind=_kind(found, t),
            title=_title(t, f"predicted {format_count(x)}", f"measured {format_count(y)}"),
        )
        for x, y, t in values
    ]
    figure = plot(
        points,
        [Line(points=[(0.0, 0.0), (high, high)], kind="dashed")],
        x_label="predicted tokens per second",
        y_label="measured",
        x_format=format_count,
        y_format=format_count,
        x_range=(0.0, high),
        y_range=(0.0, high),
        description="Predicted against measured throughput",
    )
    errors = prediction_errors(found.trials)
    caption = f"On the dashed line the prediction is exact. Median error of the step time {errors['step_time']:.0%}"
    caption += f", of the peak memory {errors['memory']:.0%}." if "memory" in errors else "."
    return _figure("Predicted against measured", figure, caption)


def _steps(found: Result) -> str:
    bars, profiled = [], True
    for label, trial in (("default config", found.baseline), ("winner", found.best)):
        if trial is None or (label == "winner" and trial is found.baseline):
            continue
        parts, measured = time_parts(trial)
        parts = {name: time_s for name, time_s in parts.items() if name != OVERLAPPED}
        if parts and trial.measurement is not None:
            profiled = profiled and measured
            step = trial.measurement.step_time_s
            bars.append(Bar(label=f"{label} (#{trial.number})", parts=parts, mark=step, note=format_duration(step)))
    if not bars:
        return ""
    names = {**PART_NAMES, **{n: n for bar in bars for n in bar.parts if n not in PART_NAMES}}
    figure = stacked_bars(
        bars,
        names=names,
        colours=PART_COLOURS,
        number=format_duration,
        x_label="seconds of one optimizer step",
        description="Parts of the step, default config against winner",
    )
    source = "Profiled parts" if profiled else "Parts as the cost model predicts them"
    return _figure("Where the time goes", figure, f"{source}; the thick tick is the measured step time.")


def _memory(found: Result) -> str:
    bars = []
    for trial in found.trials[:MAX_BARS]:
        peak = trial.measurement.peak_memory_bytes if trial.measurement else None
        if trial.estimate is None or (peak is None and trial.failure is None):
            continue
        parts = {n: float(v) for n, v in trial.estimate.memory_parts_bytes.to_dict().items()}
        note = (
            format_bytes(peak) if peak else (str(trial.failure.kind).lower().replace("_", " ") if trial.failure else "")
        )
        bars.append(Bar(label=f"#{trial.number}", parts=parts, mark=peak, note=note))
    if not bars:
        return ""
    capacities = [
        t.measurement.memory_capacity_bytes
        for t in found.trials
        if t.measurement and t.measurement.memory_capacity_bytes
    ]
    capacity = min(capacities, default=found.record.study.workload.cluster.gpu.memory_bytes)
    largest = max(max(bar.mark or 0.0, sum(bar.parts.values())) for bar in bars)
    shown = capacity <= 4 * largest
    figure = stacked_bars(
        bars,
        names={f.name: PART_NAMES[f.name] for f in fields(MemoryParts)},
        colours=PART_COLOURS,
        number=format_bytes,
        x_label="peak memory of the fullest rank",
        description="Predicted and measured peak memory by trial, against the capacity",
        unit=2.0 ** (10 * math.floor(math.log2(max(largest, 1.0)) / 10)),
        limit=capacity if shown else None,
        limit_label=f"capacity {format_bytes(capacity)}",
    )
    caption = "Predicted parts, and the measured peak as a thick tick."
    caption += "" if shown else f" The capacity of {format_bytes(capacity)} is far to the right."
    return _figure("Memory", figure, caption)


def _figure(title: str, svg: str, caption: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
