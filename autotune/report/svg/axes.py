"""Plots of marks and lines over two linear axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER,
    RIGHT,
    TOP,
    WIDTH,
    Format,
    opening_tag,
    text,
    tick_labels,
    ticks,
)

LEGEND_ROW = 20.0
"""height of a row of the legend, pixels"""
OUTLIER_RATIO = 4.0
"""minimum ratio of an outlier to the largest other value; the axis excludes outliers"""
MIN_INLIERS = 4
"""minimum number of values that are no outliers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One of a plot's two axes."""

    label: str
    """quantity and unit"""
    format: Format
    """formats a value for its tick"""
    low: float | None = None
    """start of the axis; None: zero"""
    high: float | None = None
    """end of the axis; None: a little above the largest value"""
    ticks: Callable[[float, float, int], list[float]] = ticks
    """returns about the given number of tick values between two ends"""
    is_whole: bool = False
    """whether only whole numbers have ticks"""

    def span(self, values: Sequence[float], margin: float) -> tuple[float, float]:
        """Return both ends of the axis for these values."""
        low = 0.0 if self.low is None else self.low
        high = (1.0 + margin) * usual_top(values) if self.high is None else self.high
        return low, high if high > low else low + 1.0

    def shown_ticks(self, low: float, high: float) -> list[tuple[float, str]]:
        """Return the values with a tick and their labels, without duplicate labels."""
        values = [v for v in self.ticks(low, high, 5) if not self.is_whole or v == round(v)]
        value_by_label: dict[str, float] = {}
        for value, label in zip(values, tick_labels(values, self.format), strict=True):
            value_by_label.setdefault(label, value)
        return [(value, label) for label, value in value_by_label.items()]


def usual_top(values: Sequence[float]) -> float:
    """Return the largest value that is no outlier, such as a first step that compiles. At most a
    tenth of the values (or one) can be outliers, each over `OUTLIER_RATIO` times the largest other
    value."""
    rising = sorted(v for v in values if math.isfinite(v))
    if not rising:
        return 1.0
    for num_outliers in range(max(1, len(rising) // 10), 0, -1):
        if (
            len(rising) - num_outliers >= MIN_INLIERS
            and rising[-num_outliers] > OUTLIER_RATIO * rising[-num_outliers - 1] > 0
        ):
            return rising[-num_outliers - 1]
    return rising[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mark at (x, y) in data units."""

    x: float
    y: float
    title: str
    """tooltip"""
    kind: str = "dot"
    """dot, soft (paler), front, best (larger), base (a square) or fail (a cross)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points in data units."""

    points: Sequence[tuple[float, float]]
    kind: str = "line"
    """class in the style sheet: line, second, dashed or dotted"""
    label: str = ""
    """text above its right end, or in the legend"""
    stepped: bool = False
    """horizontal until the next point, then vertical"""


def plot(
    points: Sequence[Point],
    lines: Sequence[Line] = (),
    *,
    x: Axis,
    y: Axis,
    description: str,
    legend: bool = False,
) -> str:
    """Return a plot as SVG. `legend`: write the lines' labels under the plot instead of at their
    ends."""
    xs = [p.x for p in points] + [x for line in lines for x, _ in line.points]
    ys = [p.y for p in points] + [y for line in lines for _, y in line.points]
    (low_x, high_x), (low_y, high_y) = x.span(xs, 0.05), y.span(ys, 0.1)
    labeled = [line for line in lines if line.label and line.points] if legend else []
    height = HEIGHT + (LEGEND_ROW if labeled else 0.0)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at_x(value: float) -> float:
        return LEFT + (value - low_x) / (high_x - low_x) * (right - LEFT)

    def at_y(value: float) -> float:
        return bottom - (min(value, high_y) - low_y) / (high_y - low_y) * (bottom - TOP)

    out = [opening_tag(WIDTH, height, description)]
    for value, words in y.shown_ticks(low_y, high_y):
        out.append(f'<path class="grid" d="M{LEFT:g} {at_y(value):.1f}H{right:g}"/>')
        out.append(text("tick", LEFT - 8, at_y(value) + 4, words, "end"))
    next_free_x = 0.0
    for value, words in x.shown_ticks(low_x, high_x):
        half = LETTER * len(words) / 2
        middle = min(at_x(value), WIDTH - half)  # keep the last label inside the figure
        if middle - half >= next_free_x:
            out.append(text("tick", middle, bottom + 18, words, "middle"))
            next_free_x = middle + half + LETTER / 2
    out.append(f'<path class="axis" d="M{LEFT:g} {bottom:g}H{right:g}"/>')
    out.append(text("name", (LEFT + right) / 2, HEIGHT - 8, x.label, "middle"))
    out.append(text("name", 4, 13, y.label))
    out += [_path(line, at_x, at_y, right, has_label=not legend) for line in lines if line.points]
    out += [_mark(p, at_x(p.x), at_y(p.y)) for p in points if p.y <= high_y]
    for p in points:
        if p.y > high_y:  # an outlier: draw it at the upper edge, with its value
            px, side = at_x(p.x), "end" if at_x(p.x) > (LEFT + right) / 2 else "start"
            out.append(
                f'<path class="over" d="M{px - 5:.1f} {TOP + 9:g}l5 -9l5 9z"><title>{escape(p.title)}</title></path>'
            )
            out.append(
                text("tick", px + (-9 if side == "end" else 9), TOP + 8, y.format(p.y), side)
            )
    for index, line in enumerate(labeled):
        start, middle = LEFT + (right - LEFT) / len(labeled) * index, height - 10
        out.append(f'<path class="{escape(line.kind)}" d="M{start:.1f} {middle - 4:.1f}h22"/>')
        out.append(text("key", start + 28, middle, line.label))
    return "".join([*out, "</svg>"])


def _path(
    line: Line,
    at_x: Callable[[float], float],
    at_y: Callable[[float], float],
    right: float,
    *,
    has_label: bool,
) -> str:
    (x, y), *rest = line.points
    commands = [f"M{at_x(x):.1f} {at_y(y):.1f}"]
    for x, y in rest:
        commands.append(
            f"H{at_x(x):.1f}V{at_y(y):.1f}" if line.stepped else f"L{at_x(x):.1f} {at_y(y):.1f}"
        )
    label = (
        text("tick", right - 4, at_y(y) - 5, line.label, "end") if line.label and has_label else ""
    )
    return f'<path class="{escape(line.kind)}" d="{"".join(commands)}"/>{label}'


def _mark(point: Point, x: float, y: float) -> str:
    inner = f"<title>{escape(point.title)}</title>"
    if point.kind == "fail":
        return f'<path class="fail" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8">{inner}</path>'
    if point.kind == "base":
        return f'<rect class="base" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10">{inner}</rect>'
    radius = 7.0 if point.kind == "best" else 4.5
    return f'<circle class="{escape(point.kind)}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{inner}</circle>'
