"""The resources of a study: each limit of the budget, spent and left, and its trials on ranks over
time.

A trial occupies its ranks from start to end. Which GPUs it used is not recorded, so it is drawn on
the first free ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from autotune.report.figures.source import CONFIG, STATUS, TRIAL, FigureSource, tooltip
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.svg.lanes import Span, lanes
from autotune.report.terminal import format_duration
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import Trial, TrialPurpose, TrialStatus, config_label
from autotune.spec.config import capitalized
from autotune.spec.texts.as_text import duration_cell, format_span
from autotune.study.controller.trial_index import ASKED

MAX_DRAWN = 300
"""number of newest trials to draw"""
LIMIT_NAMES = {
    "trials": "search trials",
    "failed_trials": "failed trials",
    "wall_s": "wall time, s",
    "gpu_s": "GPU time, s",
}
"""display names of the limits, by name in the table's data"""
Limit = tuple[str, str, float, float, Callable[[float], str]]
"""(name in the table's data, label, spent, limit, formatter)"""


def budget_spent(source: FigureSource) -> Figure | None:
    """Return the figure of the spent share of each limit."""
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
        shows="How much of each study limit is spent. The study ends when a limit is reached, or earlier if further trials would not be worth their time.",
        how_to_read=capitalized(
            "; ".join(
                f"{label}: {show(spent)} of {show(limit)}"
                for _, label, spent, limit, show in limits
            )
            + "."
        ),
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
                Column(
                    name="limit", head="limit", is_number=False, show=lambda name: LIMIT_NAMES[name]
                ),
                Column(name="spent", head="spent", show=_number_text),
                Column(name="of", head="of", show=_number_text),
                Column(name="left", head="left", show=_number_text),
                Column(
                    name="spent_share", head="share spent", show=lambda v: f"{v:.0%}", bar_of=1.0
                ),
            ),
            [
                (
                    name,
                    spent,
                    limit,
                    max(0.0, limit - spent),
                    min(1.0, spent / limit) if limit > 0 else None,
                )
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
        ("trials", "search trials", float(spent), float(budget.max_trials), lambda n: f"{n:.0f}"),
        (
            "failed_trials",
            "failed trials",
            float(failed),
            float(budget.max_failed_trials),
            lambda n: f"{n:.0f}",
        ),
        ("wall_s", "wall time", record.elapsed_s, budget.max_wall_s, format_span),
    ]
    if budget.max_gpu_s is not None:
        used = float(record.result.get("gpu_s", 0.0)) or _gpu_s(source)
        limits.append(("gpu_s", "GPU time", used, budget.max_gpu_s, format_span))
    return limits


def _number_text(value: float) -> str:
    """Return a number as text, such as `3,600`, `41.2` or `0.5`."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _gpu_s(source: FigureSource) -> float:
    """Return the GPU-seconds of the ended trials."""
    return sum(
        t.config.world_size * (t.ended_at - t.started_at).total_seconds()
        for t in source.result.shown
        if t.started_at and t.ended_at
    )


def trial_timeline(source: FigureSource) -> Figure | None:
    """Return the figure of when each trial ran and on how many ranks; None if none started."""
    started = [t for t in source.result.shown if t.started_at is not None]
    started.sort(key=lambda t: (t.started_at, t.number))
    ended = [t.ended_at for t in started if t.ended_at is not None]
    now = max(ended, default=source.result.record.updated_at)
    shown = started[-MAX_DRAWN:]
    if not shown:
        return None
    study = source.result.record.study
    count = max(
        [(study.at_hand or study.workload.cluster).num_gpus, *(t.config.world_size for t in shown)]
    )
    spans = _assign_ranks(source, shown, now, count)
    omission = (
        f" The newest {MAX_DRAWN} of {len(started):,} runs are drawn; the data table has all of them."
        if len(started) > len(shown)
        else ""
    )
    return Figure(
        name="timeline",
        title="Trials on ranks",
        shows=f"When each trial ran, from launch to end, and how many of the {count} ranks it used.{omission}",
        how_to_read="Each box is a trial, numbered if there is room; its height is the number of ranks. Green: measured. Blue: running. Red: failed. Gray: ended early. Framed: finals. Empty space to the right of a box is idle time of its ranks.",
        svg=lanes(
            spans,
            count=count,
            low_s=min(s.start_s for s in spans),
            high_s=max(s.end_s for s in spans),
            x_label="time since the start of the study",
            x_format=format_duration,
            description="Trials over time, with the ranks that each used",
        ),
        table=table_of(
            (
                TRIAL,
                CONFIG,
                STATUS,
                Column(name="ranks", head="ranks"),
                Column(name="start_s", head="start", show=duration_cell),
                Column(name="end_s", head="end", show=duration_cell),
                Column(name="setup_s", head="setup", show=duration_cell),
            ),
            [
                (
                    t.number,
                    config_label(t.config),
                    str(t.status),
                    t.config.world_size,
                    source.elapsed_s(t.started_at),
                    source.elapsed_s(t.ended_at),
                    t.measurement.setup_s if t.measurement else None,
                )
                for t in started
            ],
        ),
    )


def _assign_ranks(
    source: FigureSource, trials: list[Trial], now: datetime, count: int
) -> list[Span]:
    """Return the trials' boxes, each on the first free ranks at its start, or on the first ranks if
    too few are free."""
    free_at = [0.0] * count
    spans = []
    for t in trials:
        start = source.elapsed_s(t.started_at) or 0.0
        end = max(start, source.elapsed_s(t.ended_at or now) or start)
        ranks = min(t.config.world_size, count)
        free_lanes = (
            i
            for i in range(count - ranks + 1)
            if all(f <= start + 1e-3 for f in free_at[i : i + ranks])
        )
        lane = next(free_lanes, 0)
        free_at[lane : lane + ranks] = [end] * ranks
        final = " final" if t.purpose is TrialPurpose.FINAL else ""
        spans.append(
            Span(
                start_s=start,
                end_s=end,
                lane=lane,
                lanes=ranks,
                label=str(t.number),
                title=tooltip(t, str(t.status).lower(), format_duration(end - start)),
                kind=f"{t.status}{final}",
            )
        )
    return spans
