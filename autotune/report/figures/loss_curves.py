"""Loss of the winner and the baseline against the fp32 reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.report.figures.source import FigureSource
from autotune.report.svg.axes import Axis, Line, plot
from autotune.report.terminal import format_count
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import Trial, TrialPurpose
from autotune.spec.texts.as_text import count_cell


def loss_curves(source: FigureSource) -> Figure | None:
    """Losses over the tokens seen."""
    curves = _curves(source)
    if not any(kind == "line" for _, kind, _, _ in curves):
        return None
    points = {
        name: [(tokens * (i + 1), loss) for i, loss in enumerate(losses)]
        for name, _, losses, tokens in curves
    }
    drawn = (loss for curve in points.values() for _, loss in curve)
    known = [loss for loss in drawn if math.isfinite(loss)]
    if not known:
        return None
    lines = [
        Line(points=[p for p in points[name] if math.isfinite(p[1])], kind=kind, label=name)
        for name, kind, _, _ in curves
    ]
    same = source.result.record.study.same_data
    alike = (
        "All runs saw the same batches in the same order, so the curves should coincide"
        if same
        else "The runs saw different batches, so only the trend is comparable"
    )
    return Figure(
        name="loss_reference",
        title="Loss against the reference",
        shows="Training loss in nats per token, plotted over the tokens seen after warm-up, for the winner, the baseline and the fp32 reference.",
        how_to_read=f"{alike}. If a curve is above the reference, the curve's config trades accuracy for speed.",
        svg=plot(
            [],
            lines,
            x=Axis(label="tokens seen after warm-up", format=format_count),
            y=loss_axis(known),
            description="Loss of the winner and the baseline against the fp32 reference",
            legend=True,
        ),
        table=table_of(
            (
                Column(name="curve", head="curve", is_number=False),
                Column(name="tokens", head="tokens", show=count_cell),
                Column(name="loss_nats_per_token", head="loss", show=lambda value: f"{value:.4f}"),
            ),
            [(name, x, y) for name, curve in points.items() for x, y in curve],
        ),
    )


def loss_axis(losses: Sequence[float]) -> Axis:
    """The upright axis of these losses, with a margin of 5% of their spread on both sides."""
    low, high = min(losses), max(losses)
    margin = 0.05 * (high - low or 1.0)
    return Axis(
        label="loss, nats per token",
        format=lambda value: f"{value:.3g}",
        low=low - margin,
        high=high + margin,
    )


def _curves(source: FigureSource) -> list[tuple[str, str, tuple[float, ...], int]]:
    """(name, class of the line, losses, tokens of a step)."""
    best, default = source.result.best, source.result.baseline
    found: list[tuple[str, str, tuple[float, ...], int]] = []
    if best is None or best.measurement is None:
        return found
    reference = next(
        (t for t in source.result.shown if t.purpose is TrialPurpose.REFERENCE and t.is_measured),
        None,
    )
    if reference is not None and reference.measurement is not None and reference.measurement.losses:
        found.append(
            (
                "fp32 reference",
                "dashed",
                reference.measurement.losses,
                reference.measurement.tokens_per_step,
            )
        )
    elif best.measurement.reference_losses:
        found.append(
            (
                "fp32 reference",
                "dashed",
                best.measurement.reference_losses,
                best.measurement.tokens_per_step,
            )
        )
    if default is not None and default.config != best.config:
        found += _curve(f"baseline #{default.number}", "second", default)
    return found + _curve(f"winner #{best.number}", "line", best)


def _curve(name: str, kind: str, trial: Trial) -> list[tuple[str, str, tuple[float, ...], int]]:
    m = trial.measurement
    return [(name, kind, m.losses, m.tokens_per_step)] if m is not None and m.losses else []
