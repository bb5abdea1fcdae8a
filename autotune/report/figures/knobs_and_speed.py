"""Which knobs make a config fast: all trials across the knobs, and the share of the speed's
variance that each knob explains alone.

    y        ln tokens/s                     S_k = Var_v(E[y | knob k = v]) / Var(y)       0 to 1

S_k is the first-order sensitivity index (Sobol' 1993; Saltelli et al. 2008, eq. 1.19). For the
predicted configs that should fit, it is computed directly, with equal weights. For n measured
trials with m values of the knob, chance would inflate it, so the variance between the values is
corrected as in epsilon squared (Kelley 1935):
    S_k = max(0, (SS_between - (m - 1) s^2) / SS_total)         s^2 = SS_within / (n - m)
Knobs depend on one another (dp follows from tp and pp), so the shares need not add up to 1, and a
knob that matters only together with another knob has a small share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.report.figures.source import (
    CONFIG,
    MEASURED,
    STATUS,
    TRIAL,
    FigureSource,
    omission_sentence,
    tooltip,
    value_text,
    varying_knobs,
)
from autotune.report.notes import note_of
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.svg.parallel_axes import Item, UprightAxis, parallel_axes
from autotune.report.terminal import format_count
from autotune.results.figure import Column, Figure, table_of
from autotune.reward import tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label

MAX_AXES = 8
"""maximum number of knobs to show"""
SPEED_LEVELS = 5
"""number of line styles for different speeds"""
MIN_TRIALS = 8
"""number of measured trials below which no measured share is shown"""


def knob_importance(source: FigureSource) -> Figure | None:
    """Return the figure of the share of the speed's variance that each knob explains alone; None
    without shares."""
    rows = importance_rows(source)
    if not rows:
        return None
    bars = []
    for name, predicted, measured in rows[:MAX_AXES]:
        if predicted is not None:
            bars.append(Bar(label=name, parts={"predicted": predicted}, note=f"{predicted:.0%}"))
        if measured is not None:
            label = name if predicted is None else ""
            bars.append(Bar(label=label, parts={"measured": measured}, note=f"{measured:.0%}"))
    return Figure(
        name="knob_importance",
        title="Importance of each knob",
        shows="Share of the variance of log tokens per second that each knob explains alone: predicted over all configs that should fit, and measured over the trials.",
        how_to_read="A long bar means that this knob matters. Shares need not add up to 100%, because knobs depend on one another. Measured shares "
        f"need at least {MIN_TRIALS} trials, and are smaller because the search tries good values more often than bad ones.",
        svg=stacked_bars(
            bars,
            names={"predicted": "predicted, all configs", "measured": "measured trials"},
            number=lambda share: f"{share:.0%}",
            x_label="share of the variance of ln(tokens/s)",
            description="Share of the variance of speed that each knob explains",
        ),
        table=table_of(
            (
                Column(name="knob", head="knob", is_number=False),
                Column(
                    name="predicted_share", head="predicted", show=lambda v: f"{v:.1%}", bar_of=1.0
                ),
                Column(
                    name="measured_share", head="measured", show=lambda v: f"{v:.1%}", bar_of=1.0
                ),
            ),
            rows,
        ),
    )


def importance_rows(source: FigureSource) -> list[tuple[str, float | None, float | None]]:
    """Return (knob, predicted share, measured share), the most important knob first."""
    space = source.space
    trials = [
        t
        for t in source.searched
        if t.purpose is TrialPurpose.SEARCH or t.purpose is TrialPurpose.BASELINE
    ]
    speeds = np.log([tokens_per_s(t) for t in trials]) if len(trials) >= MIN_TRIALS else np.empty(0)
    rows = []
    for name in varying_knobs(source):
        predicted = None
        if space is not None and name in space.table.knobs and space.fits.sum() > 1:
            predicted = explained_share(
                space.table.column(name)[space.fits], np.log(space.tokens_per_s[space.fits])
            )
        measured = None
        if len(speeds):
            values = np.unique(
                [value_text(t.config.value(name)) for t in trials], return_inverse=True
            )[1]
            measured = explained_share(values, speeds, is_sample=True)
        if predicted is not None or measured is not None:
            rows.append((name, predicted, measured))
    return sorted(
        rows, key=lambda row: -max(row[1] or 0.0, 0.0 if row[1] is not None else row[2] or 0.0)
    )


def explained_share(
    codes: NDArray[Any], y: NDArray[np.float64], *, is_sample: bool = False
) -> float | None:
    """Return S_k for a knob with these codes, shape (N,); None if the knob or the speed does not
    vary. `is_sample`: correct S_k for chance."""
    groups, index = np.unique(codes, return_inverse=True)
    total = float(((y - y.mean()) ** 2).sum())
    n, m = len(y), len(groups)
    if m < 2 or total <= 1e-12 * n or (is_sample and n <= m):
        return None
    means = np.bincount(index, weights=y) / np.bincount(index)
    within = float(((y - means[index]) ** 2).sum())
    between = total - within
    return max(0.0, (between - ((m - 1) * within / (n - m) if is_sample else 0.0)) / total)


def parallel_coordinates(source: FigureSource) -> Figure | None:
    """Return the figure with every trial as a line across the varying knobs to its speed; None if
    nothing varies."""
    trials = [
        t
        for t in source.without_proxies
        if t.number in source.counted or (t.failure and t.purpose is not TrialPurpose.FINAL)
    ]
    values_by_knob = {
        name: values
        for name, values in varying_knobs(source).items()
        if len({value_text(t.config.value(name)) for t in trials}) > 1
    }
    speeds = sorted(tokens_per_s(t) for t in trials if t.is_measured)
    if not values_by_knob or not speeds:
        return None
    ranked = [name for name, _, _ in importance_rows(source) if name in values_by_knob] or list(
        values_by_knob
    )
    chosen = set(ranked[:MAX_AXES])
    names = [name for name in values_by_knob if name in chosen]
    positions = {
        name: {value_text(v): i for i, v in enumerate(values_by_knob[name])} for name in names
    }
    low, high = min(0.98 * speeds[0], speeds[0] - 1e-9), speeds[-1]
    shown = source.thinned(trials)
    items = [_line(source, t, names, positions, low, high) for t in shown]
    items.sort(key=lambda item: _DRAWING_ORDER.index(item.kind))
    ends = [low + (high - low) * i / 4 for i in range(5)]
    axes = [
        UprightAxis(
            name=_AXIS_NAMES.get(name, name), values=[value_text(v) for v in values_by_knob[name]]
        )
        for name in names
    ]
    hidden = len(values_by_knob) - len(names)
    knobs = "knob is" if hidden == 1 else "knobs are"
    more = f" {hidden} less important {knobs} omitted." if hidden else ""
    return Figure(
        name="parallel_coordinates",
        title="Trials across the knobs",
        shows=f"Every trial as a line across the varying knobs, ending at its tokens per second.{more}"
        + omission_sentence(len(shown), len(trials)),
        how_to_read="Each line is a trial, and crosses each axis at the value in its config. Stronger lines are faster, and the thick line is the best trial. Dashed red lines failed and end at the bottom. A value that many strong lines cross is good.",
        svg=parallel_axes(
            [*axes, UprightAxis(name="tokens/s", values=[format_count(v) for v in ends])],
            items,
            description="Trials as lines across knobs",
        ),
        table=table_of(
            (
                TRIAL,
                CONFIG,
                STATUS,
                *(Column(name=n, head=n, show=value_text) for n in values_by_knob),
                MEASURED,
            ),
            [
                (
                    t.number,
                    config_label(t.config),
                    str(t.status),
                    *(t.config.value(n) for n in values_by_knob),
                    tokens_per_s(t) if t.is_measured else None,
                )
                for t in trials
            ],
        ),
    )


_DRAWING_ORDER = (
    "path failed",
    *(f"path speed-{level}" for level in range(SPEED_LEVELS)),
    "path base-path",
    "path winner",
)
"""kinds of lines, in drawing order: the last is on top"""
_AXIS_NAMES = {
    "micro_batch_size": "micro batch",
    "accumulation_steps": "accumulation",
    "sequence_parallel": "seq. parallel",
    "zero_stage": "ZeRO",
    "pp_schedule": "schedule",
    "virtual_stages": "virtual stages",
}
"""short names of knobs for axes"""


def _line(
    source: FigureSource,
    trial: Trial,
    names: Sequence[str],
    positions: dict[str, dict[str, int]],
    low: float,
    high: float,
) -> Item:
    """Return a trial as a line across the axes of `names`; `positions`: index of each value on its
    axis."""
    heights = []
    for name in names:
        last = len(positions[name]) - 1
        heights.append(positions[name][value_text(trial.config.value(name))] / last)
    if not trial.is_measured:
        title = tooltip(trial, note_of(trial))
        return Item(at=[*heights, 0.0], title=title, kind="path failed")
    speed = tokens_per_s(trial)
    share = (speed - low) / (high - low) if high > low else 1.0
    kind = f"path speed-{min(SPEED_LEVELS - 1, math.floor(SPEED_LEVELS * share))}"
    kind = {"best": "path winner", "base": "path base-path"}.get(source.kind(trial), kind)
    return Item(
        at=[*heights, share], title=tooltip(trial, f"{format_count(speed)} tokens/s"), kind=kind
    )
