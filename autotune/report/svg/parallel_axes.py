"""Parallel axes (Inselberg 1985): an upright axis for each dimension, a line across all of them for
each item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import LETTER, WIDTH, open_figure, shortened, text

LEFT, RIGHT, TOP, TALL = 34.0, 54.0, 40.0, 220.0
MOST_VALUES = 12
"""values written beside an axis"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UprightAxis:
    """One dimension."""

    name: str
    values: Sequence[str]
    """written beside it, bottom to top, at equal distances"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line across the axes."""

    at: Sequence[float]
    """its height on each axis, 0 (bottom) to 1 (top)"""
    title: str
    kind: str
    """class in the style sheet"""


def parallel_axes(axes: Sequence[UprightAxis], items: Sequence[Item], *, description: str) -> str:
    """Later items are drawn over earlier ones."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(axes) - 1)
    room = max(6, int(step / LETTER))

    def y_of(height: float) -> float:
        return TOP + TALL * (1.0 - height)

    out = [open_figure(WIDTH, TOP + TALL + 18, description)]
    for item in items:
        route = "L".join(
            f"{LEFT + step * i:.1f} {y_of(height):.1f}" for i, height in enumerate(item.at)
        )
        out.append(
            f'<path class="{escape(item.kind)}" d="M{route}"><title>{escape(item.title)}</title></path>'
        )
    for i, axis in enumerate(axes):
        x = LEFT + step * i
        out.append(f'<path class="axis" d="M{x:.1f} {TOP:g}V{TOP + TALL:g}"/>')
        edge, anchor = x, "middle"
        if i == 0:
            edge, anchor = 4.0, "start"
        elif i == len(axes) - 1:
            edge, anchor = WIDTH - 4, "end"
        out.append(
            text("name", edge, TOP - 26 + 15 * (i % 2), shortened(axis.name, 2 * room), anchor)
        )
        each = -(-len(axis.values) // MOST_VALUES) or 1
        for k in range(0, len(axis.values), each):
            height = k / (len(axis.values) - 1) if len(axis.values) > 1 else 0.5
            out.append(text("tick halo", x + 5, y_of(height) + 4, shortened(axis.values[k], room)))
    return "".join([*out, "</svg>"])
