"""The steps of the trials that run now, and how much of each is left.

A trial takes from `min_steps` to `max_steps` steps after its warm-up: it ends when its median is
known well enough. What is left is that many steps more of the median step so far; before the first
step only the deadline is known.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.report.figures.source import CONFIG, TRIAL, FigureSource
from autotune.report.svg.axes import Axis, Line, Point, plot
from autotune.report.svg.canvas import time_ticks
from autotune.report.terminal import format_duration
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import MeasureSpec, Study, Trial, TrialPurpose, TrialStatus, config_label
from autotune.spec.config import capitalized
from autotune.spec.texts.as_text import duration_cell, number_of
from autotune.study.controller.finals.finalists import longer, whole

KINDS = ("line", "second", "dashed", "dotted")
"""classes of the lines, for as many trials as are told apart"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsLeft:
    """How far a running trial is."""

    trial: Trial
    done: int
    """steps so far, warm-up included"""
    most: int
    """steps that it can take, warm-up included"""
    least_s: float | None
    """seconds that are left at least; None before the first step"""
    most_s: float | None
    """seconds that are left at most; None before the first step"""
    waits: bool = False
    """whether it has no ranks yet"""

    def __str__(self) -> str:
        said = f"trial {self.trial.number}: {self.done} of at most {number_of(self.most, 'step')}"
        if self.waits:
            return f"{said}; waiting for ranks"
        if self.least_s is None or self.most_s is None:
            return f"{said}; starting"
        if self.most_s <= 0:
            return f"{said}; ending"
        between = f"{format_duration(self.least_s)} to " if self.least_s > 0 else "at most "
        return f"{said}; {between}{format_duration(self.most_s)} left"


def steps_left(source: FigureSource) -> list[StepsLeft]:
    """Of each running trial, by number."""
    record = source.result.record
    waiting = {row["trial"] for row in record.result.get("waiting") or ()}
    left = [
        _left(t, record.study, source.steps.get(t.number, {}).get("step_time_s", ()))
        for t in _running(source)
    ]
    return [replace(each, waits=each.trial.number in waiting) for each in left]


def running_steps(source: FigureSource) -> Figure | None:
    """Step times of the running trials so far."""
    series = {
        t.number: source.steps[t.number]
        for t in _running(source)
        if source.steps.get(t.number, {}).get("step")
    }
    if not series:
        return None
    warm_up = source.result.record.study.measure.warmup_steps
    last = max(max(steps["step"]) for steps in series.values())
    shown = list(series.items())[: len(KINDS)]
    configs = {t.number: config_label(t.config) for t in _running(source)}
    cut = (
        f" The first {len(shown)} of {len(series)} runs are drawn; the data table has all of them."
        if len(shown) < len(series)
        else ""
    )
    return Figure(
        name="running_steps",
        title="Steps of the running trials",
        shows=f"Duration of each optimizer step so far on the slowest rank.{cut}",
        how_to_read=f"Each dot is a step; pale dots (the first {warm_up}) are warm-up and do not count. A trial ends when its steps agree closely enough. "
        + ". ".join(capitalized(str(left)) for left in steps_left(source))
        + ".",
        svg=plot(
            [
                Point(
                    x=step,
                    y=time_s,
                    kind="soft" if step < warm_up else "dot",
                    title=f"trial {number}, step {step:.0f}: {format_duration(time_s)}",
                )
                for number, steps in shown
                for step, time_s in zip(steps["step"], steps["step_time_s"], strict=True)
            ],
            [
                Line(
                    points=list(zip(steps["step"], steps["step_time_s"], strict=True)),
                    kind=kind,
                    label=f"trial {number}",
                )
                for kind, (number, steps) in zip(KINDS, shown, strict=False)
            ],
            x=Axis(
                label="step", format=lambda v: f"{v:.0f}", high=max(1.0, last) + 0.5, is_whole=True
            ),
            y=Axis(label="step time", format=format_duration, ticks=time_ticks),
            description="Step times of the running trials",
            legend=True,
        ),
        table=table_of(
            (
                TRIAL,
                CONFIG,
                Column(name="step", head="step"),
                Column(name="step_time_s", head="step time", show=duration_cell),
            ),
            [
                (number, configs[number], int(step), time_s)
                for number, steps in series.items()
                for step, time_s in zip(steps["step"], steps["step_time_s"], strict=True)
            ],
        ),
    )


def _running(source: FigureSource) -> list[Trial]:
    return [t for t in source.result.shown if t.status is TrialStatus.RUNNING]


def _left(trial: Trial, study: Study, times_s: Sequence[float]) -> StepsLeft:
    rules, done = _rules(trial, study), len(times_s)
    least, most = rules.warmup_steps + rules.min_steps, rules.warmup_steps + rules.max_steps
    counted = times_s[rules.warmup_steps :] or times_s
    step_s = statistics.median(counted) if counted else None
    return StepsLeft(
        trial=trial,
        done=done,
        most=most,
        least_s=step_s * max(0, least - done) if step_s is not None else None,
        most_s=step_s * max(0, most - done) if step_s is not None else None,
    )


def _rules(trial: Trial, study: Study) -> MeasureSpec:
    if trial.purpose is TrialPurpose.REFERENCE:
        return whole(study.measure)
    return longer(study.measure) if trial.purpose is TrialPurpose.FINAL else study.measure
