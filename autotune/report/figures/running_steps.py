"""The steps of the running trials, and the time left for each.

A trial takes from `min_steps` to `max_steps` steps after its warm-up, and ends when its median step
time is known precisely enough. The time left is the number of remaining steps times the median step
time so far; before the first step it is unknown.
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
"""classes of the lines; one trial for each class is drawn"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsLeft:
    """The progress of a running trial."""

    trial: Trial
    done: int
    """number of steps so far, with warm-up"""
    most: int
    """largest number of steps, with warm-up"""
    least_s: float | None
    """minimum time left, seconds; None before the first step"""
    most_s: float | None
    """longest time left, seconds; None before the first step"""
    waits: bool = False
    """whether the trial still waits for ranks"""

    def __str__(self) -> str:
        progress = (
            f"trial {self.trial.number}: {self.done} of at most {number_of(self.most, 'step')}"
        )
        if self.waits:
            return f"{progress}; waiting for ranks"
        if self.least_s is None or self.most_s is None:
            return f"{progress}; starting"
        if self.most_s <= 0:
            return f"{progress}; ending"
        time_range = f"{format_duration(self.least_s)} to " if self.least_s > 0 else "at most "
        return f"{progress}; {time_range}{format_duration(self.most_s)} left"


def steps_left(source: FigureSource) -> list[StepsLeft]:
    """Return the progress of each running trial, ordered by number."""
    record = source.result.record
    waiting = {row["trial"] for row in record.result.get("waiting") or ()}
    progress = [
        _progress(t, record.study, source.steps.get(t.number, {}).get("step_time_s", ()))
        for t in _running(source)
    ]
    return [replace(each, waits=each.trial.number in waiting) for each in progress]


def running_steps(source: FigureSource) -> Figure | None:
    """Return the figure of the running trials' step times so far; None before the first step."""
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
    omission = (
        f" The first {len(shown)} of {len(series)} runs are drawn; the data table has all of them."
        if len(shown) < len(series)
        else ""
    )
    return Figure(
        name="running_steps",
        title="Steps of the running trials",
        shows=f"Duration of each optimizer step so far on the slowest rank.{omission}",
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


def _progress(trial: Trial, study: Study, times_s: Sequence[float]) -> StepsLeft:
    measure, done = _measure_spec(trial, study), len(times_s)
    min_steps, max_steps = (
        measure.warmup_steps + measure.min_steps,
        measure.warmup_steps + measure.max_steps,
    )
    counted = times_s[measure.warmup_steps :] or times_s
    step_s = statistics.median(counted) if counted else None
    return StepsLeft(
        trial=trial,
        done=done,
        most=max_steps,
        least_s=step_s * max(0, min_steps - done) if step_s is not None else None,
        most_s=step_s * max(0, max_steps - done) if step_s is not None else None,
    )


def _measure_spec(trial: Trial, study: Study) -> MeasureSpec:
    if trial.purpose is TrialPurpose.REFERENCE:
        return whole(study.measure)
    return longer(study.measure) if trial.purpose is TrialPurpose.FINAL else study.measure
