"""A grid of labeled cells, filled by value or hatched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import WIDTH, opening_tag, shortened, text

LEVELS = 5
"""number of fill classes, from `level-0` (lowest) to `level-4` in the style sheet"""
LEFT, TOP, GAP = 76.0, 44.0, 4.0
CELL, LOW_CELL = 54.0, 42.0
"""height of a cell, and of a cell in a grid with many rows, user units"""
MAX_LETTERS = 22
"""longest name of a knob, characters"""
MIN_WIDTH_FOR_TWO_LINES = 62.0
"""width below which a cell shows only its first line, user units"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A cell of the grid."""

    lines: Sequence[str]
    """at most two lines of text"""
    title: str
    """tooltip"""
    kind: str
    """measured (framed), predicted (dashed frame), plain (thin frame) or refused (hatched)"""
    level: int = 0
    """0 to `LEVELS` - 1; ignored for a refused cell"""


def tiles(
    cells: Mapping[tuple[int, int], Tile],
    *,
    columns: Sequence[str],
    rows: Sequence[str],
    column_name: str,
    row_name: str,
    description: str,
) -> str:
    """Return the grid as SVG. `cells` by (row, column); missing cells stay empty."""
    height = CELL if len(rows) <= 6 else LOW_CELL
    width = (WIDTH - LEFT - 8) / max(1, len(columns))
    out = [opening_tag(WIDTH, TOP + height * len(rows) + 8, description)]
    out.append(
        text(
            "name",
            LEFT + (WIDTH - LEFT - 8) / 2,
            14,
            shortened(column_name, MAX_LETTERS),
            "middle",
        )
    )
    out.append(text("name", 4, 14, shortened(row_name, MAX_LETTERS)))
    out += [
        text("tick", LEFT + width * (i + 0.5), TOP - 10, name, "middle")
        for i, name in enumerate(columns)
    ]
    out += [
        text("row", LEFT - 12, TOP + height * (i + 0.5) + 4, name, "end")
        for i, name in enumerate(rows)
    ]
    for (row, column), tile in cells.items():
        x, y = LEFT + width * column, TOP + height * row
        out.append(_tile(tile, x, y, width - GAP, height - GAP))
    return "".join([*out, "</svg>"])


def _tile(tile: Tile, x: float, y: float, width: float, height: float) -> str:
    level = "" if tile.kind == "refused" else f" level-{tile.level}"
    box = (
        f'<g class="tile {escape(tile.kind)}{level}"><title>{escape(tile.title)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"/>'
    )
    if tile.kind == "refused":
        box += _hatching(x, y, width, height)
    lines = list(tile.lines)[: 2 if width >= MIN_WIDTH_FOR_TWO_LINES else 1]
    first = y + height / 2 + 5 - 8 * (len(lines) - 1)
    words = [
        text(
            "cell" if i == 0 else "cell less",
            x + width / 2,
            first + 16 * i,
            shortened(line, int(width / 6)),
            "middle",
        )
        for i, line in enumerate(lines)
    ]
    return "".join([box, *words, "</g>"])


def _hatching(x: float, y: float, width: float, height: float, step: float = 9.0) -> str:
    """Return diagonal lines inside a rectangle. They are drawn individually, because an SVG pattern
    needs a unique id, and a page may contain a figure twice."""
    parts, offset = [], step
    while offset < width + height:
        x1, y1 = (x + offset, y) if offset <= width else (x + width, y + offset - width)
        x2, y2 = (x, y + offset) if offset <= height else (x + offset - height, y + height)
        parts.append(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}")
        offset += step
    return f'<path class="hatch" d="{"".join(parts)}"/>'
