"""The best speed so far, over trials and over time, with the baseline and the best prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.report.figures.source import (
    CONFIG,
    ELAPSED,
    MEASURED,
    STATUS,
    TRIAL,
    FigureSource,
    mark_sentences,
    omission_sentence,
    tooltip,
)
from autotune.report.notes import note_of
from autotune.report.svg.axes import Axis, Line, Point, plot, usual_top
from autotune.report.svg.canvas import ticks, time_ticks
from autotune.report.terminal import format_count, format_duration
from autotune.results.figure import Column, Figure, table_of
from autotune.reward import tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label
from autotune.spec.texts.as_text import count_cell

BEST = Column(name="best_tokens_per_s", head="best so far, tokens/s", show=count_cell)
LINE_TEXTS = {
    "line": "Solid line: best so far.",
    "dashed": "Dashed line: baseline.",
    "dotted": "Dotted line: the predicted speed of a plan's top config.",
}
"""explanations of the lines, by kind; only lines that occur are explained"""
PREDICTED_ABOVE = "The predicted speed of a plan's top config, {} tokens/s, lies above the figure."


def best_so_far(source: FigureSource) -> Figure | None:
    """Return the figure of the best speed so far over trials; None without a measured trial."""
    return _figure(source, is_time=False)


def best_so_far_over_time(source: FigureSource) -> Figure | None:
    """Return the figure of the best speed so far over the study's time; None without a measured
    trial."""
    return _figure(source, is_time=True)


def _figure(source: FigureSource, *, is_time: bool) -> Figure | None:
    def position(trial: Trial) -> float | None:
        return source.elapsed_s(trial.ended_at) if is_time else float(trial.number)

    # a config's dot has the figures of all its runs, so measured final runs have no dot
    ended = [
        t
        for t in source.without_proxies
        if t.failure or (t.is_measured and t.purpose is not TrialPurpose.FINAL)
    ]
    placed = [(x, t) for t in ended if (x := position(t)) is not None]
    placed.sort(key=lambda pair: (pair[0], pair[1].number))
    if not any(t.is_measured for _, t in placed):
        return None
    levels, top = [], -math.inf
    for x, t in placed:
        if t.number in source.counted and t.number not in source.result.below:
            top = max(top, tokens_per_s(t))
        levels.append((x, top))
    shown = source.thinned([t for _, t in placed])
    numbers = {t.number for t in shown}
    first, last = placed[0][0], max(placed[-1][0], placed[0][0] + 1e-3)
    margin = 0.03 * (last - min(first, 0.0))
    x_axis = Axis(
        label="time since the start of the study" if is_time else "trial",
        format=format_duration if is_time else lambda value: f"{value:.0f}",
        low=-margin,
        high=last + margin,
        is_whole=not is_time,
        ticks=time_ticks if is_time else ticks,
    )
    points = [_point(source, x, t) for x, t in placed if t.number in numbers]
    defined = [(x, level) for x, level in levels if level > -math.inf]
    steps = [
        pair
        for i, pair in enumerate(defined)
        if i in (0, len(defined) - 1) or pair[1] > defined[i - 1][1]
    ]
    best = [Line(points=steps, stepped=True)] if len(steps) > 1 else []
    lines = [*best, *_baseline_line(source, last + margin)]
    top = usual_top([p.y for p in points] + [y for line in lines for _, y in line.points])
    y_axis = Axis(label="tokens per second", format=format_count, high=1.1 * top)
    optimum = _optimum(source)
    is_above = optimum is not None and optimum > 1.1 * top
    if optimum is not None and not is_above:
        label = f"best prediction: {format_count(optimum)}"
        lines.append(
            Line(points=[(0.0, optimum), (last + margin, optimum)], kind="dotted", label=label)
        )
    above_sentence = f" {PREDICTED_ABOVE.format(format_count(optimum))}" if is_above else ""
    x_name = "time" if is_time else "trials"
    return Figure(
        name="best_so_far_over_time" if is_time else "best_so_far",
        title=f"Best so far over {x_name}",
        shows=f"Measured throughput in tokens per second of the whole job, over the study's {'time' if is_time else 'trials'}."
        + omission_sentence(len(points), len(placed)),
        how_to_read=_how_to_read(source, points, lines, shown) + above_sentence,
        svg=plot(
            points,
            lines,
            x=x_axis,
            y=y_axis,
            description=f"Measured throughput over {x_name}, with the best so far",
            legend=True,  # at the lines' ends, labels would cover marks
        ),
        table=table_of(
            (TRIAL, ELAPSED, CONFIG, STATUS, MEASURED, BEST),
            [
                (
                    t.number,
                    source.elapsed_s(t.ended_at),
                    config_label(t.config),
                    str(t.status),
                    tokens_per_s(t) if t.is_measured else None,
                    level if level > -math.inf else None,
                )
                for (_, t), (_, level) in zip(placed, levels, strict=True)
            ],
        ),
    )


def _point(source: FigureSource, x: float, trial: Trial) -> Point:
    if not trial.is_measured:
        return Point(x=x, y=0.0, kind="fail", title=tooltip(trial, note_of(trial)))
    speed = tokens_per_s(trial)
    kind, why = source.kind(trial), source.result.below.get(trial.number, "")
    reason = trial.reason if kind == "soft" else why
    title = tooltip(trial, f"{format_count(speed)} tokens/s", *([reason] if reason else []))
    return Point(x=x, y=speed, kind=kind, title=title)


def _baseline_line(source: FigureSource, end: float) -> list[Line]:
    baseline = source.result.baseline
    if baseline is None or not baseline.is_measured:
        return []
    speed = tokens_per_s(baseline)
    return [Line(points=[(0.0, speed), (end, speed)], kind="dashed", label="baseline")]


def _optimum(source: FigureSource) -> float | None:
    """Return the predicted speed of a plan's top config; None if it is not comparable, because a
    calibration of the cluster changed the trials' predictions."""
    optimum = source.space.optimum_tokens_per_s if source.space is not None else None
    is_calibrated = optimum is not None and any(
        t.estimate is not None and float(t.estimate.tokens_per_s) > 1.05 * optimum
        for t in source.without_proxies
    )
    return None if is_calibrated else optimum


def _how_to_read(
    source: FigureSource, points: Sequence[Point], lines: Sequence[Line], shown: Sequence[Trial]
) -> str:
    """Return sentences that explain the marks and lines."""
    drawn = {line.kind for line in lines}
    sentences = [
        "Each dot is a config, with the combined speed of all its runs.",
        *mark_sentences(points),
    ]
    if any(t.number in source.result.below for t in shown):
        sentences.append("Other dots above the best do not rank above it (hover to see why).")
    return " ".join([*sentences, *(words for kind, words in LINE_TEXTS.items() if kind in drawn)])
