"""The budget: what is spent of each limit of the study, and what is left."""

from __future__ import annotations

from collections.abc import Callable

from autotune.report.figures.source import FigureSource
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.terminal import format_duration
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import TrialStatus
from autotune.study.controller.trial_index import ASKED

NAMES = {"trials": "trials", "failed_trials": "failed trials", "wall_s": "wall time, s", "gpu_s": "GPU time, s"}
"""limits as people read them, by their names in data"""
Limit = tuple[str, str, float, float, Callable[[float], str]]
"""(name in data, label, spent, limit, how it is written)"""


def budget_spent(source: FigureSource) -> Figure | None:
    """Shares of each limit."""
    limits = _limits(source)
    bars = [
        Bar(
            label=label,
            parts={"spent": min(1.0, spent / limit), "left": max(0.0, 1.0 - spent / limit)},
            note=f"{show(max(0.0, limit - spent))} left",
        )
        for _, label, spent, limit, show in limits
        if limit > 0
    ]
    return Figure(
        name="budget",
        title="Budget spent and left",
        shows="How much of each study limit is spent. The study ends when a limit is reached, or earlier if further trials would not pay off.",
        how_to_read="; ".join(f"{label}: {show(spent)} of {show(limit)}" for _, label, spent, limit, show in limits)
        + ".",
        svg=stacked_bars(
            bars,
            names={"spent": "spent", "left": "left"},
            number=lambda share: f"{share:.0%}",
            x_label="share of the limit",
            description="How much of each budget limit is spent",
            legend=False,
        ),
        table=table_of(
            (
                Column(name="limit", head="limit", is_number=False, show=lambda name: NAMES[name]),
                Column(name="spent", head="spent", show=_number),
                Column(name="of", head="of", show=_number),
                Column(name="left", head="left", show=_number),
                Column(name="spent_share", head="share spent", show=lambda v: f"{v:.0%}", bar_of=1.0),
            ),
            [
                (name, spent, limit, max(0.0, limit - spent), min(1.0, spent / limit) if limit > 0 else None)
                for name, _, spent, limit, _ in limits
            ],
        ),
    )


def _limits(source: FigureSource) -> list[Limit]:
    record, budget = source.result.record, source.result.record.study.budget
    searched = [t for t in source.result.shown if t.purpose in ASKED]
    spent = sum(t.status is not TrialStatus.CANCELLED for t in searched)
    failed = sum(t.status is TrialStatus.FAILED for t in source.result.shown)
    limits: list[Limit] = [
        ("trials", "trials", float(spent), float(budget.max_trials), lambda n: f"{n:.0f}"),
        ("failed_trials", "failed trials", float(failed), float(budget.max_failed_trials), lambda n: f"{n:.0f}"),
        ("wall_s", "wall time", record.elapsed_s, budget.max_wall_s, format_duration),
    ]
    if budget.max_gpu_s is not None:
        used = float(record.result.get("gpu_s", 0.0)) or _gpu_s(source)
        limits.append(("gpu_s", "GPU time", used, budget.max_gpu_s, format_duration))
    return limits


def _number(value: float) -> str:
    """`3,600`, `41.2`, `0.5`."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _gpu_s(source: FigureSource) -> float:
    """GPU-seconds of the trials that ended."""
    return sum(
        t.config.world_size * (t.ended_at - t.started_at).total_seconds()
        for t in source.result.shown
        if t.started_at and t.ended_at
    )
