"""A line chart as plain SVG, so that the figures of the benchmarks can be drawn without a plotting
library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 44, 52
COLORS = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#8f5fbf",
    "#e08e0b",
    "#13868c",
    "#6b6b6b",
    "#b0457b",
    "#9c6b30",
    "#3d3d9e",
)
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LOWEST = 0.005


def curves_svg(curves: Mapping[str, Sequence[float]], *, title: str) -> str:
    """Curves of fractions (0 to 1) by trial, on a logarithmic axis; fractions under 0.5% are drawn
    at 0.5%."""
    length = max(len(curve) for curve in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    for tick in TICKS:
        y = _y(tick)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
    for trial in (1, *range(5, length + 1, 5)):
        x = _x(trial, length)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{trial}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">trials</text>')
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        points = " ".join(
            f"{_x(i + 1, length):.1f},{_y(value):.1f}" for i, value in enumerate(curve)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        y = TOP + 10 + 22 * number
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 5}" width="18" height="4" fill="{color}"/>'
        )
        parts.append(f'<text x="{WIDTH - RIGHT + 42}" y="{y + 2}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _x(trial: float, length: int) -> float:
    return LEFT + (trial - 1) / max(length - 1, 1) * (WIDTH - RIGHT - LEFT)


def _y(value: float) -> float:
    share = (math.log(max(value, LOWEST)) - math.log(LOWEST)) / -math.log(LOWEST)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
