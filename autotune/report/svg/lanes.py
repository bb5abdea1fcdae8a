"""Time spans on lanes: one lane per rank, time to the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import (
    LEFT,
    RIGHT,
    WIDTH,
    Format,
    opening_tag,
    text,
    tick_labels,
    time_ticks,
)

TOP, BOTTOM = 20.0, 46.0
MIN_HEIGHT, MAX_HEIGHT = 64.0, 190.0
"""least and largest height of all lanes together, user units"""
MIN_LABELED_WIDTH = 18.0
"""minimum width of a span with a label, user units"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A rectangle that covers several lanes for some time."""

    start_s: float
    end_s: float
    lane: int
    """its first lane, from 0"""
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
    """Return the figure as SVG, with `count` lanes from `low_s` to `high_s`."""
    lanes_height = min(MAX_HEIGHT, max(MIN_HEIGHT, 20.0 * count))
    right, bottom = WIDTH - RIGHT, TOP + lanes_height
    duration_s = max(high_s - low_s, 1e-9)

    def x_of(time_s: float) -> float:
        return LEFT + (time_s - low_s) / duration_s * (right - LEFT)

    out = [opening_tag(WIDTH, bottom + BOTTOM, description), text("name", 4, 13, "rank")]
    stride = max(1, round(count / 8))
    out += [
        text("tick", LEFT - 8, TOP + lanes_height * (i + 0.5) / count + 4, str(i), "end")
        for i in range(0, count, stride)
    ]
    values = time_ticks(low_s, high_s, 5)
    for value, words in zip(values, tick_labels(values, x_format), strict=True):
        out.append(f'<path class="grid" d="M{x_of(value):.1f} {TOP:g}V{bottom:g}"/>')
        out.append(text("tick", x_of(value), bottom + 18, words, "middle"))
    for span in spans:
        x, width = x_of(span.start_s), max(1.0, x_of(span.end_s) - x_of(span.start_s))
        y, height = TOP + lanes_height * span.lane / count, lanes_height * span.lanes / count
        thin = " thin" if width < MIN_LABELED_WIDTH else ""
        out.append(
            f'<g class="span {escape(span.kind)}{thin}"><title>{escape(span.title)}</title>'
            f'<rect x="{x:.1f}" y="{y + 1:.1f}" width="{width:.1f}" height="{max(1.0, height - 2):.1f}"/>'
        )
        out.append(
            text("cell", x + width / 2, y + height / 2 + 4, span.label, "middle")
            if not thin
            else ""
        )
        out.append("</g>")
    out.append(text("name", (LEFT + right) / 2, bottom + 38, x_label, "middle"))
    return "".join([*out, "</svg>"])
