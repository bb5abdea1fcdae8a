"""The Pareto front: speed against memory, and which configs no other one beats in everything."""

from __future__ import annotations

from autotune.report.figures.source import CONFIG, MEASURED, MEMORY, TRIAL, FigureSource, left_out, title_of
from autotune.report.reward_tables import cost_label
from autotune.report.svg.axes import Axis, Line, Point, plot
from autotune.report.svg.canvas import byte_ticks
from autotune.report.terminal import format_bytes, format_count
from autotune.results.figure import Column, Figure, table_of
from autotune.results.rankings import merits_document, pareto
from autotune.reward import tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label


def pareto_front(source: FigureSource) -> Figure | None:
    """Speed against peak memory, the front marked."""
    workload = source.result.record.study.workload
    front = {t.number: t for t in pareto(source.result)}
    searched = [t for t in source.searched if t.purpose is not TrialPurpose.PROXY]
    placed = [(peak, t) for t in searched if (peak := t.peak_memory_bytes) is not None]
    if len(placed) < 2:
        return None
    shown = {t.number for t in source.thinned([t for _, t in placed])} | set(front)
    lowest = min(peak for peak, _ in placed)
    points = [
        Point(
            x=peak,
            y=tokens_per_s(t),
            kind=_kind(source, t, is_front=t.number in front),
            title=title_of(t, f"{format_count(tokens_per_s(t))} tokens/s", format_bytes(peak)),
        )
        for peak, t in placed
        if t.number in shown
    ]
    points.sort(key=lambda p: ("soft", "dot", "base", "front", "best").index(p.kind))
    stairs, top = [], 0.0
    for peak, t in sorted(placed, key=lambda pair: (pair[0], -tokens_per_s(pair[1]))):
        if t.number in front and tokens_per_s(t) > top:
            top = tokens_per_s(t)
            stairs.append((peak, top))
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
        shows="Tokens per second against the highest peak memory of any rank. No other measured config is at least as good as a front config in speed, stability, free memory and cost."
        + left_out(len(points), len(placed)),
        how_to_read="Up is faster, left needs less memory. Filled dots are the front; the line joins the fastest for their memory. Pale dots are beaten by another config, or lost to it when both were re-measured. A front dot below the line is more stable or cheaper.",
        svg=plot(
            points,
            [Line(points=stairs, stepped=True)],
            x=Axis(label="highest peak memory of any rank", format=format_bytes, low=0.9 * lowest, ticks=byte_ticks),
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
    kind = source.kind(trial)
    if kind != "dot":
        return kind
    return "front" if is_front else "soft"
