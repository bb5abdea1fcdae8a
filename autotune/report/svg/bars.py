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
    open_figure,
    shortened,
    text,
    tick_words,
    ticks,
)

ROW, LEFT, RIGHT = 34.0, 134.0, 88.0
"""height of a row; least width of the labels and of the notes"""
BAR = 20.0
"""height of a bar"""
MOST_LETTERS = 20
"""of a label"""
TICK_GAP = 12.0
"""least space between the words of two ticks"""
KEY_ROW = 20.0
"""height of a row of the legend"""


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
    """`names`: what people call each part; it has the class `part-NAME` in the style sheet.
    `limit`: a vertical line."""
    totals = [sum(bar.parts.values()) for bar in bars] + [
        bar.mark for bar in bars if bar.mark is not None
    ]
    high = 1.02 * max([*totals, limit or 0.0, 1e-12])
    used = [name for name in names if any(bar.parts.get(name, 0.0) > 0 for bar in bars)]
    bottom = TOP + ROW * len(bars)
    keys = _key_places([names[name] for name in used]) if legend else []
    height = bottom + 42.0 + (keys[-1][1] + KEY_ROW if keys else 0.0)
    left = max([LEFT, *(LETTER * min(MOST_LETTERS, len(bar.label)) + 10 for bar in bars)])
    right = WIDTH - max([RIGHT, *(LETTER * len(bar.note) + 8 for bar in bars)])

    def at(value: float) -> float:
        return left + value / high * (right - left)

    out = [open_figure(WIDTH, height, description)]
    values = _apart(lambda about: tick_values(0.0, high, about), number, at)
    for value, words in zip(values, tick_words(values, number), strict=True):
        out.append(f'<path class="grid" d="M{at(value):.1f} {TOP:g}V{bottom:g}"/>')
        out.append(text("tick", at(value), bottom + 16, words, "middle"))
    for index, bar in enumerate(bars):
        out.append(_row(bar, _y(index), names, used, number, at))
    if limit is not None:
        out.append(f'<path class="limit" d="M{at(limit):.1f} {TOP - 4:g}V{bottom:g}"/>')
        out.append(text("tick", at(limit) - 4, TOP - 7, limit_label, "end"))
    for index, bar in enumerate(bars):  # above the line of the limit
        end = max(math.fsum(bar.parts.get(name, 0.0) for name in used), bar.mark or 0.0)
        out.append(text("row halo", at(end) + 6, _y(index) + BAR - 5, bar.note))
    out.append(text("name", (left + right) / 2, bottom + 34, x_label, "middle"))
    for name, (x, down) in zip(used, keys, strict=False):
        y = bottom + 46 + down
        out.append(
            f'<rect class="part part-{escape(name)}" x="{x:g}" y="{y:g}" width="11" height="11"/>'
        )
        out.append(text("key", x + 16, y + 10, names[name]))
    return "".join([*out, "</svg>"])


def _apart(
    of: Callable[[int], list[float]], number: Format, at: Callable[[float], float]
) -> list[float]:
    """As many tick values, four or fewer, as have room for their words side by side."""
    for about in (4, 3, 2):
        values = of(about)
        widest = LETTER * max(map(len, tick_words(values, number)))
        if all(at(b) - at(a) >= widest + TICK_GAP for a, b in pairwise(values)):
            return values
    return [values[0], values[-1]]


def _key_places(words: Sequence[str]) -> list[tuple[float, float]]:
    """Where each entry of the legend stands, (x, y) from its first row: side by side while they
    fit."""
    places, x, y = [], 16.0, 0.0
    for word in words:
        wide = 16 + LETTER * len(word) + 16
        if x + wide > WIDTH and x > 16:
            x, y = 16.0, y + KEY_ROW
        places.append((x, y))
        x += wide
    return places


def _row(
    bar: Bar,
    y: float,
    names: Mapping[str, str],
    used: Sequence[str],
    number: Format,
    at: Callable[[float], float],
) -> str:
    out, start = (
        [text("row", at(0.0) - 8, y + BAR - 5, shortened(bar.label, MOST_LETTERS), "end")],
        0.0,
    )
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
        out.append(
            f'<path class="mark" d="M{at(bar.mark):.1f} {y - 3:g}v{BAR + 6:g}"><title>{said}</title></path>'
        )
    return "".join(out)


def _y(index: int) -> float:
    """The top of the bar of a row."""
    return TOP + ROW * index + (ROW - BAR) / 2
