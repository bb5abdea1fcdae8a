"""A grid of labeled cells, each filled by how large its value is, or hatched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import WIDTH, open_figure, shortened, text

LEVELS = 5
"""classes of fill, `level-0` (least) to `level-4` in the style sheet"""
LEFT, TOP, GAP = 76.0, 44.0, 4.0
CELL, LOW_CELL = 54.0, 42.0
"""height of a cell, and with many rows"""
MOST_LETTERS = 22
"""of a knob's name"""
NARROW = 62.0
"""cells below this width show their first line only"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A cell of the grid."""

    lines: Sequence[str]
    """at most two lines of text"""
    title: str
    """what the pointer shows"""
    kind: str
    """measured (framed), predicted (dashed frame), plain (thin frame) or refused (hatched)"""
    level: int = 0
    """0 to `LEVELS` - 1; of no meaning where it is refused"""


def tiles(
    cells: Mapping[tuple[int, int], Tile],
    *,
    columns: Sequence[str],
    rows: Sequence[str],
    column_name: str,
    row_name: str,
    description: str,
) -> str:
    """`cells` by (row, column). Places without a cell stay empty."""
    tall = CELL if len(rows) <= 6 else LOW_CELL
    wide = (WIDTH - LEFT - 8) / max(1, len(columns))
    out = [open_figure(WIDTH, TOP + tall * len(rows) + 8, description)]
    out.append(
        text(
            "name",
            LEFT + (WIDTH - LEFT - 8) / 2,
            14,
            shortened(column_name, MOST_LETTERS),
            "middle",
        )
    )
    out.append(text("name", 4, 14, shortened(row_name, MOST_LETTERS)))
    out += [
        text("tick", LEFT + wide * (i + 0.5), TOP - 10, name, "middle")
        for i, name in enumerate(columns)
    ]
    out += [
        text("row", LEFT - 12, TOP + tall * (i + 0.5) + 4, name, "end")
        for i, name in enumerate(rows)
    ]
    for (row, column), tile in cells.items():
        x, y = LEFT + wide * column, TOP + tall * row
        out.append(_tile(tile, x, y, wide - GAP, tall - GAP))
    return "".join([*out, "</svg>"])


def _tile(tile: Tile, x: float, y: float, wide: float, tall: float) -> str:
    level = "" if tile.kind == "refused" else f" level-{tile.level}"
    box = (
        f'<g class="tile {escape(tile.kind)}{level}"><title>{escape(tile.title)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="4"/>'
    )
    if tile.kind == "refused":
        box += _hatching(x, y, wide, tall)
    lines = list(tile.lines)[: 2 if wide >= NARROW else 1]
    first = y + tall / 2 + 5 - 8 * (len(lines) - 1)
    words = [
        text(
            "cell" if i == 0 else "cell less",
            x + wide / 2,
            first + 16 * i,
            shortened(line, int(wide / 6)),
            "middle",
        )
        for i, line in enumerate(lines)
    ]
    return "".join([box, *words, "</g>"])


def _hatching(x: float, y: float, wide: float, tall: float, step: float = 9.0) -> str:
    """Diagonal lines inside a rectangle, drawn one by one: a pattern needs an id, and a page may
    hold the same figure twice."""
    parts, offset = [], step
    while offset < wide + tall:
        x1, y1 = (x + offset, y) if offset <= wide else (x + wide, y + offset - wide)
        x2, y2 = (x, y + offset) if offset <= tall else (x + offset - tall, y + tall)
        parts.append(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}")
        offset += step
    return f'<path class="hatch" d="{"".join(parts)}"/>'
