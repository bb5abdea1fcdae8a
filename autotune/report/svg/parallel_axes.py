"""Parallel axes (Inselberg 1985): a vertical axis per dimension, and a line across all axes per
item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import LETTER, WIDTH, opening_tag, shortened, text

LEFT, RIGHT, TOP, AXIS_HEIGHT = 34.0, 54.0, 40.0, 220.0
"""margins and height of the axes, user units"""
MAX_VALUES = 12
"""maximum number of values to write next to an axis"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UprightAxis:
    """The axis of one dimension."""

    name: str
    values: Sequence[str]
    """labels from bottom to top, at equal distances"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line across the axes."""

    at: Sequence[float]
    """position on each axis, from 0 (bottom) to 1 (top)"""
    title: str
    kind: str
    """class in the style sheet"""


def parallel_axes(axes: Sequence[UprightAxis], items: Sequence[Item], *, description: str) -> str:
    """Return the figure as SVG. Later items are drawn over earlier ones."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(axes) - 1)
    max_letters = max(6, int(step / LETTER))

    def y_of(height: float) -> float:
        return TOP + AXIS_HEIGHT * (1.0 - height)

    out = [opening_tag(WIDTH, TOP + AXIS_HEIGHT + 18, description)]
    for item in items:
        route = "L".join(
            f"{LEFT + step * i:.1f} {y_of(height):.1f}" for i, height in enumerate(item.at)
        )
        out.append(
            f'<path class="{escape(item.kind)}" d="M{route}"><title>{escape(item.title)}</title></path>'
        )
    for i, axis in enumerate(axes):
        x = LEFT + step * i
        out.append(f'<path class="axis" d="M{x:.1f} {TOP:g}V{TOP + AXIS_HEIGHT:g}"/>')
        edge, anchor = x, "middle"
        if i == 0:
            edge, anchor = 4.0, "start"
        elif i == len(axes) - 1:
            edge, anchor = WIDTH - 4, "end"
        out.append(
            text(
                "name", edge, TOP - 26 + 15 * (i % 2), shortened(axis.name, 2 * max_letters), anchor
            )
        )
        stride = -(-len(axis.values) // MAX_VALUES) or 1
        for k in range(0, len(axis.values), stride):
            height = k / (len(axis.values) - 1) if len(axis.values) > 1 else 0.5
            out.append(
                text("tick halo", x + 5, y_of(height) + 4, shortened(axis.values[k], max_letters))
            )
    return "".join([*out, "</svg>"])
