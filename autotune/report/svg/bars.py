"""Horizontal stacked bars on one scale that starts at zero, with a legend of the parts that
occur."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from autotune.report.svg.canvas import (
    LETTER,
    TOP,
    WIDTH,
    Format,
    opening_tag,
    shortened,
    text,
    tick_labels,
    ticks,
)

ROW, LEFT, RIGHT = 34.0, 134.0, 88.0
"""height of a row, least width of labels, least width of notes, pixels"""
BAR = 20.0
"""height of a bar, pixels"""
MAX_LETTERS = 20
"""longest label, characters"""
TICK_GAP = 12.0
"""minimum space between two tick labels, pixels"""
KEY_ROW = 20.0
"""height of a row of the legend, pixels"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of stacked parts."""

    label: str
    parts: Mapping[str, float]
    """length of each part by name, in data units"""
    mark: float | None = None
    """position of a tick across the bar, e.g. the measured value, in data units"""
    note: str = ""
    """text after the bar"""


def stacked_bars(
    bars: Sequence[Bar],
    *,
    names: Mapping[str, str],
    number: Format,
    x_label: str,
    description: str,
    tick_values: Callable[[float, float, int], list[float]] = ticks,
    limit: float | None = None,
    limit_label: str = "",
    legend: bool = True,
) -> str:
    """Return the bars as SVG. `names`: display name of each part, whose class in the style sheet is
    `part-NAME`. `limit`: position of a vertical line, in data units."""
    totals = [sum(bar.parts.values()) for bar in bars] + [
        bar.mark for bar in bars if bar.mark is not None
    ]
    high = 1.02 * max([*totals, limit or 0.0, 1e-12])
    used = [name for name in names if any(bar.parts.get(name, 0.0) > 0 for bar in bars)]
    bottom = TOP + ROW * len(bars)
    keys = _legend_positions([names[name] for name in used]) if legend else []
    height = bottom + 42.0 + (keys[-1][1] + KEY_ROW if keys else 0.0)
    left = max([LEFT, *(LETTER * min(MAX_LETTERS, len(bar.label)) + 10 for bar in bars)])
    right = WIDTH - max([RIGHT, *(LETTER * len(bar.note) + 8 for bar in bars)])

    def x_of(value: float) -> float:
        return left + value / high * (right - left)

    out = [opening_tag(WIDTH, height, description)]
    values = _spaced_ticks(lambda about: tick_values(0.0, high, about), number, x_of)
    for value, words in zip(values, tick_labels(values, number), strict=True):
        out.append(f'<path class="grid" d="M{x_of(value):.1f} {TOP:g}V{bottom:g}"/>')
        out.append(text("tick", x_of(value), bottom + 16, words, "middle"))
    for index, bar in enumerate(bars):
        out.append(_row(bar, _y(index), names, used, number, x_of))
    if limit is not None:
        out.append(f'<path class="limit" d="M{x_of(limit):.1f} {TOP - 4:g}V{bottom:g}"/>')
        out.append(text("tick", x_of(limit) - 4, TOP - 7, limit_label, "end"))
    for index, bar in enumerate(bars):  # draw notes above the limit's line
        end = max(math.fsum(bar.parts.get(name, 0.0) for name in used), bar.mark or 0.0)
        out.append(text("row halo", x_of(end) + 6, _y(index) + BAR - 5, bar.note))
    out.append(text("name", (left + right) / 2, bottom + 34, x_label, "middle"))
    for name, (x, down) in zip(used, keys, strict=False):
        y = bottom + 46 + down
        out.append(
            f'<rect class="part part-{escape(name)}" x="{x:g}" y="{y:g}" width="11" height="11"/>'
        )
        out.append(text("key", x + 16, y + 10, names[name]))
    return "".join([*out, "</svg>"])


def _spaced_ticks(
    tick_values: Callable[[int], list[float]], number: Format, x_of: Callable[[float], float]
) -> list[float]:
    """Return tick values, at most about four, whose labels do not overlap."""
    for about in (4, 3, 2):
        values = tick_values(about)
        widest = LETTER * max(map(len, tick_labels(values, number)))
        if all(x_of(b) - x_of(a) >= widest + TICK_GAP for a, b in pairwise(values)):
            return values
    return [values[0], values[-1]]


def _legend_positions(words: Sequence[str]) -> list[tuple[float, float]]:
    """Return the position of each entry of the legend as (x, y) from its first row; entries wrap at
    the figure's width."""
    positions, x, y = [], 16.0, 0.0
    for word in words:
        width = 16 + LETTER * len(word) + 16
        if x + width > WIDTH and x > 16:
            x, y = 16.0, y + KEY_ROW
        positions.append((x, y))
        x += width
    return positions


def _row(
    bar: Bar,
    y: float,
    names: Mapping[str, str],
    used: Sequence[str],
    number: Format,
    x_of: Callable[[float], float],
) -> str:
    out, start = (
        [text("row", x_of(0.0) - 8, y + BAR - 5, shortened(bar.label, MAX_LETTERS), "end")],
        0.0,
    )
    for name in used:
        length = bar.parts.get(name, 0.0)
        if length > 0:
            title = escape(f"{bar.label}: {names[name]} {number(length)}")
            out.append(
                f'<rect class="part part-{escape(name)}" x="{x_of(start):.1f}" y="{y:g}" '
                f'width="{max(0.5, x_of(start + length) - x_of(start)):.1f}" height="{BAR:g}"><title>{title}</title></rect>'
            )
        start += length
    if bar.mark is not None:
        title = escape(f"{bar.label}: measured {number(bar.mark)}")
        out.append(
            f'<path class="mark" d="M{x_of(bar.mark):.1f} {y - 3:g}v{BAR + 6:g}"><title>{title}</title></path>'
        )
    return "".join(out)


def _y(index: int) -> float:
    """Return the top of a row's bar."""
    return TOP + ROW * index + (ROW - BAR) / 2
