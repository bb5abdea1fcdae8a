"""Horizontal stacked bars on one scale that starts at zero, with a legend of the parts that occur."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import TOP, WIDTH, Format, open_figure, shortened, text, ticks

ROW, LEFT, RIGHT = 34.0, 134.0, 88.0
BAR = 20.0
"""height of a bar"""
PER_ROW = 4
"""entries of a legend side by side"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of stacked parts."""

    label: str
    parts: Mapping[str, float]
    """length of each part by name, in data units"""
    mark: float | None = None
    """a tick across the bar, e.g. what was measured"""
    note: str = ""
    """written after the bar"""


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
    """`names`: what people call each part; it has the class `part-NAME` in the style sheet. `limit`: a vertical line."""
    totals = [sum(bar.parts.values()) for bar in bars] + [bar.mark for bar in bars if bar.mark is not None]
    high = 1.02 * max([*totals, limit or 0.0, 1e-12])
    used = [name for name in names if any(bar.parts.get(name, 0.0) > 0 for bar in bars)]
    bottom = TOP + ROW * len(bars)
    height = bottom + 42.0 + (20.0 * math.ceil(len(used) / PER_ROW) if legend else 0.0)
    right = WIDTH - RIGHT

    def at(value: float) -> float:
        return LEFT + value / high * (right - LEFT)

    out = [open_figure(WIDTH, height, description)]
    for value in tick_values(0.0, high, 4):
        out.append(f'<path class="grid" d="M{at(value):.1f} {TOP:g}V{bottom:g}"/>')
        out.append(text("tick", at(value), bottom + 16, number(value), "middle"))
    for index, bar in enumerate(bars):
        out.append(_row(bar, TOP + ROW * index + (ROW - BAR) / 2, names, used, number, at))
    if limit is not None:
        out.append(f'<path class="limit" d="M{at(limit):.1f} {TOP - 4:g}V{bottom:g}"/>')
        out.append(text("tick", at(limit) - 4, TOP - 7, limit_label, "end"))
    out.append(text("name", (LEFT + right) / 2, bottom + 34, x_label, "middle"))
    for index, name in enumerate(used if legend else ()):
        x, y = 16 + 126.0 * (index % PER_ROW), bottom + 46 + 20.0 * (index // PER_ROW)
        out.append(f'<rect class="part part-{escape(name)}" x="{x:g}" y="{y:g}" width="11" height="11"/>')
        out.append(text("key", x + 16, y + 10, names[name]))
    return "".join([*out, "</svg>"])


def _row(
    bar: Bar, y: float, names: Mapping[str, str], used: Sequence[str], number: Format, at: Callable[[float], float]
) -> str:
    out, start = [text("row", LEFT - 8, y + BAR - 5, shortened(bar.label, 20), "end")], 0.0
    for name in used:
        length = bar.parts.get(name, 0.0)
        if length > 0:
            title = escape(f"{bar.label}: {names[name]} {number(length)}")
            out.append(
                f'<rect class="part part-{escape(name)}" x="{at(start):.1f}" y="{y:g}" '
                f'width="{max(0.5, at(start + length) - at(start)):.1f}" height="{BAR:g}"><title>{title}</title></rect>'
            )
        start += length
    if bar.mark is not None:
        said = escape(f"{bar.label}: measured {number(bar.mark)}")
        out.append(f'<path class="mark" d="M{at(bar.mark):.1f} {y - 3:g}v{BAR + 6:g}"><title>{said}</title></path>')
    out.append(text("row", at(max(start, bar.mark or 0.0)) + 6, y + BAR - 5, bar.note))
    return "".join(out)
