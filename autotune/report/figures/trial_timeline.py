"""Trials on ranks over the time of the study.

A trial takes its ranks together from start to end. Which GPUs these were is not kept: the first ranks that are free are shown.
"""

from __future__ import annotations

from datetime import datetime

from autotune.report.figures.source import CONFIG, STATUS, TRIAL, FigureSource, title_of
from autotune.report.svg.lanes import Span, lanes
from autotune.report.terminal import format_duration
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import Trial, TrialPurpose, config_label

SHOWN = 300
"""the newest trials that are drawn"""


def trial_timeline(source: FigureSource) -> Figure | None:
    """When each trial ran, and on how many ranks."""
    began = [t for t in source.result.shown if t.started_at is not None]
    began.sort(key=lambda t: (t.started_at, t.number))
    ended = [t.ended_at for t in began if t.ended_at is not None]
    now = max(ended, default=source.result.record.updated_at)
    shown = began[-SHOWN:]
    if not shown:
        return None
    study = source.result.record.study
    count = max([(study.at_hand or study.workload.cluster).num_gpus, *(t.config.world_size for t in shown)])
    spans = _placed(source, shown, now, count)
    cut = (
        f" The newest {SHOWN} of {len(began):,} trials are drawn; the data table has all of them."
        if len(began) > len(shown)
        else ""
    )
    return Figure(
        name="timeline",
        title="Trials on ranks",
        shows=f"When each trial ran, from launch to end, and how many of the {count} ranks it used.{cut}",
        how_to_read="Each box is a trial, numbered if there is room; its height is the number of ranks. Green: measured. Blue: running. Red: failed. Grey: ended early. Framed: finals. Empty space to the right of a box is idle time of its ranks.",
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
                Column(name="start_s", head="start", show=format_duration),
                Column(name="end_s", head="end", show=format_duration),
                Column(name="setup_s", head="setup", show=format_duration),
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
                for t in began
            ],
        ),
    )


def _placed(source: FigureSource, trials: list[Trial], now: datetime, count: int) -> list[Span]:
    """Each trial on the first ranks that are free when it starts; on the first ones where none are."""
    free_at = [0.0] * count
    spans = []
    for t in trials:
        start = source.elapsed_s(t.started_at) or 0.0
        end = max(start, source.elapsed_s(t.ended_at or now) or start)
        ranks = min(t.config.world_size, count)
        room = (i for i in range(count - ranks + 1) if all(f <= start + 1e-3 for f in free_at[i : i + ranks]))
        lane = next(room, 0)
        free_at[lane : lane + ranks] = [end] * ranks
        final = " final" if t.purpose is TrialPurpose.FINAL else ""
        spans.append(
            Span(
                start_s=start,
                end_s=end,
                lane=lane,
                lanes=ranks,
                label=str(t.number),
                title=title_of(t, str(t.status).lower(), format_duration(end - start)),
                kind=f"{t.status}{final}",
            )
        )
    return spans
