"""Stacked areas over an order of samples, with a limit as a line, marks below, and a legend.

x is the number of a sample, y the height of the stack; steps are drawn square, for a sample holds until the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import LEFT, RIGHT, TOP, Format, open_figure, ticks

WIDTH, PLOT = 860.0, 260.0
"""user units: of the figure, and of the plot's height"""
PER_ROW = 6
"""entries of the legend side by side"""
LEAST_LABEL, LEAST_LETTER = 56.0, 10.0
"""width of a stretch whose label is written, and of one that gets its first letter"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the x axis with a name."""

    label: str
    first: int
    """sample"""
    end: int
    """one past its last sample"""


def stacked_area(
    layers: Mapping[str, Sequence[float]],
    *,
    names: Mapping[str, str],
    colours: Mapping[str, str],
    titles: Sequence[str],
    stretches: Sequence[Stretch],
    limit: float | None,
    limit_label: str,
    number: Format,
    unit: float,
    description: str,
) -> str:
    """`layers`: heights by name, all of one length, from the bottom up; `titles`: what the pointer shows at each sample."""
    count = len(titles)
    totals = [sum(layer[i] for layer in layers.values()) for i in range(count)]
    high = 1.06 * max([*totals, limit or 0.0, 1e-12])
    bottom = TOP + PLOT
    used = [name for name in names if any(layers.get(name, ()))]
    height = bottom + 50.0 + 20.0 * math.ceil(len(used) / PER_ROW)

    def at_x(index: float) -> float:
        return LEFT + index / count * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        return bottom - value / high * PLOT

    out = [open_figure(WIDTH, height, description)]
    for value in (unit * tick for tick in ticks(0.0, high / unit)):
        y = at_y(value)
        out.append(
            f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        out.append(
            f'<text class="tick" x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{escape(number(value))}</text>'
        )
    floor = [0.0] * count
    for name in used:
        roof = [low + part for low, part in zip(floor, layers[name], strict=True)]
        forth = "".join(f"V{at_y(y):.1f}H{at_x(i + 1):.1f}" for i, y in enumerate(roof))
        back = "".join(f"V{at_y(y):.1f}H{at_x(i):.1f}" for i, y in reversed(list(enumerate(floor))))
        path = f"M{at_x(0):.1f} {at_y(floor[0]):.1f}{forth}{back}Z"
        out.append(
            f'<path d="{path}" fill="{escape(colours[name])}"><title>{escape(names[name])}</title></path>'
        )
        floor = roof
    for index, title in enumerate(titles):
        x, wide = at_x(index), at_x(1) - at_x(0)
        out.append(
            f'<rect x="{x:.1f}" y="{TOP:g}" width="{wide:.1f}" height="{PLOT:g}" fill="transparent"><title>{escape(title)}</title></rect>'
        )
    out.append(
        f'<line class="axis" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{bottom:g}" y2="{bottom:g}"/>'
    )
    for stretch in stretches:
        x, wide = at_x(stretch.first), at_x(stretch.end) - at_x(stretch.first)
        out.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:g}" y2="{bottom + 6:g}"/>'
        )
        if wide >= LEAST_LETTER:
            label = stretch.label if wide >= LEAST_LABEL else stretch.label[:1]
            out.append(
                f'<text class="tick" x="{x + wide / 2:.1f}" y="{bottom + 18:g}" text-anchor="middle">{escape(label)}</text>'
            )
    if limit is not None:
        y = at_y(limit)
        out.append(
            f'<line class="limit" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        out.append(
            f'<text class="tick" x="{WIDTH - RIGHT - 4:g}" y="{y - 5:.1f}" text-anchor="end">{escape(limit_label)}</text>'
        )
    for index, name in enumerate(used):
        x, y = LEFT + 130.0 * (index % PER_ROW), bottom + 34 + 20.0 * (index // PER_ROW)
        out.append(
            f'<rect x="{x:g}" y="{y:g}" width="11" height="11" fill="{escape(colours[name])}"/>'
        )
        out.append(f'<text class="tick" x="{x + 16:g}" y="{y + 10:g}">{escape(names[name])}</text>')
    out.append("</svg>")
    return "".join(out)
