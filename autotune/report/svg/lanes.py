"""Spans of time on lanes: a lane per rank, time to the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import (
    LEFT,
    RIGHT,
    WIDTH,
    Format,
    open_figure,
    text,
    tick_words,
    time_ticks,
)

TOP, BOTTOM = 20.0, 46.0
LEAST, MOST = 64.0, 190.0
"""height of all lanes together"""
LABELLED = 18.0
"""width from which on a span shows its label"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A rectangle: some lanes for some time."""

    start_s: float
    end_s: float
    lane: int
    """the first of its lanes, from 0"""
    lanes: int
    label: str
    title: str
    kind: str
    """class in the style sheet"""


def lanes(
    spans: Sequence[Span],
    *,
    count: int,
    low_s: float,
    high_s: float,
    x_label: str,
    x_format: Format,
    description: str,
) -> str:
    """`count` lanes from `low_s` to `high_s`."""
    tall = min(MOST, max(LEAST, 20.0 * count))
    right, bottom = WIDTH - RIGHT, TOP + tall
    wide_s = max(high_s - low_s, 1e-9)

    def at(time_s: float) -> float:
        return LEFT + (time_s - low_s) / wide_s * (right - LEFT)

    out = [open_figure(WIDTH, bottom + BOTTOM, description), text("name", 4, 13, "rank")]
    each = max(1, round(count / 8))
    out += [
        text("tick", LEFT - 8, TOP + tall * (i + 0.5) / count + 4, str(i), "end")
        for i in range(0, count, each)
    ]
    values = time_ticks(low_s, high_s, 5)
    for value, words in zip(values, tick_words(values, x_format), strict=True):
        out.append(f'<path class="grid" d="M{at(value):.1f} {TOP:g}V{bottom:g}"/>')
        out.append(text("tick", at(value), bottom + 18, words, "middle"))
    for span in spans:
        x, wide = at(span.start_s), max(1.0, at(span.end_s) - at(span.start_s))
        y, height = TOP + tall * span.lane / count, tall * span.lanes / count
        thin = " thin" if wide < LABELLED else ""
        out.append(
            f'<g class="span {escape(span.kind)}{thin}"><title>{escape(span.title)}</title>'
            f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{wide:.1f}" height="{max(1.0, height - 2):.1f}"/>'
        )
        out.append(
            text("cell", x + wide / 2, y + height / 2 + 4, span.label, "middle") if not thin else ""
        )
        out.append("</g>")
    out.append(text("name", (LEFT + right) / 2, bottom + 38, x_label, "middle"))
    return "".join([*out, "</svg>"])
