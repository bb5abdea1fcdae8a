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
    """Return the figure of losses over tokens for the winner, the baseline and the fp32 reference;
    None without losses of the winner."""
    curves = _curves(source)
    if not any(kind == "line" for _, kind, _, _ in curves):
        return None
    points = {
        name: [(tokens * (i + 1), loss) for i, loss in enumerate(losses)]
        for name, _, losses, tokens in curves
    }
    drawn = (loss for curve in points.values() for _, loss in curve)
    finite = [loss for loss in drawn if math.isfinite(loss)]
    if not finite:
        return None
    lines = [
        Line(points=[p for p in points[name] if math.isfinite(p[1])], kind=kind, label=name)
        for name, kind, _, _ in curves
    ]
    comparability = (
        "All runs saw the same batches in the same order, so the curves should coincide"
        if source.result.record.study.same_data
        else "The runs saw different batches, so only the trend is comparable"
    )
    return Figure(
        name="loss_reference",
        title="Loss against the reference",
        shows="Training loss in nats per token, plotted over the tokens seen after warm-up, for the winner, the baseline and the fp32 reference.",
        how_to_read=f"{comparability}. If a curve is above the reference, the curve's config trades accuracy for speed.",
        svg=plot(
            [],
            lines,
            x=Axis(label="tokens seen after warm-up", format=format_count),
            y=loss_axis(finite),
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
    """Return the vertical axis for these losses, with a margin of 5% of their spread on both
    sides."""
    low, high = min(losses), max(losses)
    margin = 0.05 * (high - low or 1.0)
    return Axis(
        label="loss, nats per token",
        format=lambda value: f"{value:.3g}",
        low=low - margin,
        high=high + margin,
    )


def _curves(source: FigureSource) -> list[tuple[str, str, tuple[float, ...], int]]:
    """Return (name, class of the line, losses, tokens per step) of each curve."""
    best, baseline = source.result.best, source.result.baseline
    curves: list[tuple[str, str, tuple[float, ...], int]] = []
    if best is None or best.measurement is None:
        return curves
    reference = next(
        (t for t in source.result.shown if t.purpose is TrialPurpose.REFERENCE and t.is_measured),
        None,
    )
    if reference is not None and reference.measurement is not None and reference.measurement.losses:
        curves.append(
            (
                "fp32 reference",
                "dashed",
                reference.measurement.losses,
                reference.measurement.tokens_per_step,
            )
        )
    elif best.measurement.reference_losses:
        curves.append(
            (
                "fp32 reference",
                "dashed",
                best.measurement.reference_losses,
                best.measurement.tokens_per_step,
            )
        )
    if baseline is not None and baseline.config != best.config:
        curves += _curve(f"baseline #{baseline.number}", "second", baseline)
    return curves + _curve(f"winner #{best.number}", "line", best)


def _curve(name: str, kind: str, trial: Trial) -> list[tuple[str, str, tuple[float, ...], int]]:
    m = trial.measurement
    return [(name, kind, m.losses, m.tokens_per_step)] if m is not None and m.losses else []
