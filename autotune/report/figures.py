"""Figures as inline SVG: a scatter or step line over two axes, and stacked bars. No script, no network, no font of their own.

Coordinates are user units of a fixed `WIDTH`; the page scales them. Colours of lines and text come from the page's style sheet
(classes), so that a dark page stays readable; every mark has a `<title>`, which browsers show when the pointer rests on it.
All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 560.0
HEIGHT = 270.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 16.0, 44.0
PER_ROW = 4
"""entries of a legend side by side"""

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A mark at (x, y) in data units."""

    x: float
    y: float
    title: str
    """what the pointer shows"""
    kind: str = "dot"
    """dot, best (a larger one), base (a square) or fail (a cross)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through points in data units."""

    points: Sequence[tuple[float, float]]
    kind: str = "line"
    """class in the style sheet: line, dashed or limit"""
    label: str = ""
    """written at its right end"""
    stepped: bool = False
    """horizontal until the next point, then vertical"""


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


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that span `low` to `high`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def plot(
    points: Sequence[Point],
    lines: Sequence[Line] = (),
    *,
    x_label: str,
    y_label: str,
    x_format: Format,
    y_format: Format,
    description: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    whole_x: bool = False,
) -> str:
    """Marks and lines over two linear axes that start at zero unless a range is given."""
    xs = [p.x for p in points] + [x for line in lines for x, _ in line.points]
    ys = [p.y for p in points] + [y for line in lines for _, y in line.points]
    low_x, high_x = x_range or (0.0, 1.05 * max(xs, default=1.0) or 1.0)
    low_y, high_y = y_range or (0.0, 1.1 * max(ys, default=1.0) or 1.0)

    def at_x(x: float) -> float:
        return LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    out = [_open(HEIGHT, description)]
    for y in ticks(low_y, high_y):
        out.append(f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>')
        out.append(
            f'<text class="tick" x="{LEFT - 8:g}" y="{at_y(y) + 4:.1f}" text-anchor="end">{escape(y_format(y))}</text>'
        )
    for x in ticks(low_x, high_x, 7):
        if whole_x and x != round(x):
            continue
        out.append(
            f'<text class="tick" x="{at_x(x):.1f}" y="{HEIGHT - BOTTOM + 18:g}" text-anchor="middle">{escape(x_format(x))}</text>'
        )
    out.append(
        f'<line class="axis" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{HEIGHT - BOTTOM:g}" y2="{HEIGHT - BOTTOM:g}"/>'
    )
    out.append(
        f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6:g}" text-anchor="middle">{escape(x_label)}</text>'
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(
        f'<text class="name" x="14" y="{middle:g}" text-anchor="middle" transform="rotate(-90 14 {middle:g})">{escape(y_label)}</text>'
    )
    for line in lines:
        out.append(_path(line, at_x, at_y))
    out += [_mark(p, at_x(p.x), at_y(p.y)) for p in points]
    out.append("</svg>")
    return "".join(out)


def stacked_bars(
    bars: Sequence[Bar],
    *,
    names: Mapping[str, str],
    colours: Mapping[str, str],
    number: Format,
    x_label: str,
    description: str,
    unit: float = 1.0,
    limit: float | None = None,
    limit_label: str = "",
) -> str:
    """Horizontal stacked bars on one scale that starts at zero, with a legend of the parts that occur; `limit` is a vertical line;
    ticks are round multiples of `unit`."""
    row, left = 30.0, 130.0
    totals = [sum(bar.parts.values()) for bar in bars] + [bar.mark for bar in bars if bar.mark is not None]
    high = 1.02 * max([*totals, limit or 0.0, 1e-12])
    right = 96.0
    used = [name for name in names if any(bar.parts.get(name, 0.0) > 0 for bar in bars)]
    legend_rows = math.ceil(len(used) / PER_ROW)
    height = TOP + row * len(bars) + BOTTOM + 20.0 * legend_rows

    def at(value: float) -> float:
        return left + value / high * (WIDTH - left - right)

    bottom = TOP + row * len(bars)
    out = [_open(height, description)]
    for value in (unit * tick for tick in ticks(0.0, high / unit)):
        out.append(f'<line class="grid" x1="{at(value):.1f}" x2="{at(value):.1f}" y1="{TOP:g}" y2="{bottom:g}"/>')
        out.append(
            f'<text class="tick" x="{at(value):.1f}" y="{bottom + 16:g}" text-anchor="middle">{escape(number(value))}</text>'
        )
    for index, bar in enumerate(bars):
        y = TOP + row * index + 4
        out.append(
            f'<text class="row" x="{left - 8:g}" y="{y + 15:g}" text-anchor="end">{escape(_short(bar.label, 24))}</text>'
        )
        start = 0.0
        for name in used:
            length = bar.parts.get(name, 0.0)
            if length > 0:
                title = escape(f"{bar.label}: {names[name]} {number(length)}")
                out.append(
                    f'<rect x="{at(start):.1f}" y="{y:g}" width="{max(0.5, at(start + length) - at(start)):.1f}" height="{row - 10:g}" '
                    f'fill="{escape(colours.get(name, "#888"))}"><title>{title}</title></rect>'
                )
            start += length
        if bar.mark is not None:
            out.append(
                f'<line class="mark" x1="{at(bar.mark):.1f}" x2="{at(bar.mark):.1f}" y1="{y - 3:g}" y2="{y + row - 7:g}">'
                f"<title>{escape(f'{bar.label}: measured {number(bar.mark)}')}</title></line>"
            )
        end = max(start, bar.mark or 0.0)
        out.append(f'<text class="row" x="{at(end) + 6:.1f}" y="{y + 15:g}">{escape(bar.note)}</text>')
    if limit is not None:
        out.append(f'<line class="limit" x1="{at(limit):.1f}" x2="{at(limit):.1f}" y1="{TOP - 8:g}" y2="{bottom:g}"/>')
        out.append(
            f'<text class="tick" x="{at(limit) - 4:.1f}" y="{TOP - 3:g}" text-anchor="end">{escape(limit_label)}</text>'
        )
    out.append(
        f'<text class="name" x="{(left + WIDTH - right) / 2:g}" y="{bottom + 34:g}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for index, name in enumerate(used):
        x, y = 20 + 130.0 * (index % PER_ROW), bottom + 44 + 20.0 * (index // PER_ROW)
        out.append(f'<rect x="{x:g}" y="{y:g}" width="11" height="11" fill="{escape(colours.get(name, "#888"))}"/>')
        out.append(f'<text class="tick" x="{x + 16:g}" y="{y + 10:g}">{escape(names[name])}</text>')
    out.append("</svg>")
    return "".join(out)


def _open(height: float, description: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(description)}"><title>{escape(description)}</title>'


def _path(line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    if not line.points:
        return ""
    (x, y), *rest = line.points
    commands = [f"M{at_x(x):.1f} {at_y(y):.1f}"]
    for x, y in rest:
        commands.append(f"H{at_x(x):.1f}V{at_y(y):.1f}" if line.stepped else f"L{at_x(x):.1f} {at_y(y):.1f}")
    text = ""
    if line.label:
        text = f'<text class="tick" x="{WIDTH - RIGHT - 4:g}" y="{at_y(y) - 5:.1f}" text-anchor="end">{escape(line.label)}</text>'
    return f'<path class="{escape(line.kind)}" d="{"".join(commands)}"/>{text}'


def _mark(point: Point, x: float, y: float) -> str:
    title = f"<title>{escape(point.title)}</title>"
    if point.kind == "fail":
        return f'<path class="fail" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10">{title}</path>'
    if point.kind == "base":
        return f'<rect class="base" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10">{title}</rect>'
    radius = 7 if point.kind == "best" else 4.5
    return f'<circle class="{"best" if point.kind == "best" else "dot"}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{title}</circle>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
