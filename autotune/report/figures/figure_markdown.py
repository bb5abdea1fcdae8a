"""A figure as Markdown: what it shows, and its data as a table in which bars stand beside the
values. It opens with a click."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autotune.report.markdown_text import bar, code, details, table, text
from autotune.results.figure import Column, Figure

MOST_ROWS = 12
"""rows of data that are shown; the CSV of the HTML report holds all"""


def figure_markdown(figure: Figure) -> str:
    """The figure; of longer data `MOST_ROWS` rows, evenly spread from the first to the last."""
    data = figure.table
    count = len(data.rows)
    places = (
        range(count)
        if count <= MOST_ROWS
        else [i * (count - 1) // (MOST_ROWS - 1) for i in range(MOST_ROWS)]
    )
    lengths = [
        _lengths(column, [row[i] for row in data.rows]) for i, column in enumerate(data.columns)
    ]
    heads: list[tuple[str, bool]] = []
    for column, length in zip(data.columns, lengths, strict=True):
        heads += [(column.head, column.is_number), *([("", False)] if length else [])]
    rows = []
    for place in places:
        cells = []
        for column, length, value in zip(data.columns, lengths, data.rows[place], strict=True):
            shown = column.shown(value)
            cells += [
                code(shown) if column.name == "config" else text(shown),
                *([bar(length[place])] if length else []),
            ]
        rows.append(cells)
    cut = f"{MOST_ROWS} of {count:,} rows, evenly spread." if count > MOST_ROWS else ""
    return details(
        figure.title, text(figure.shows, most=len(figure.shows)), table(heads, rows), cut
    )


def _lengths(column: Column, values: Sequence[Any]) -> list[float]:
    """The length of each value's bar; empty for a column without bars."""
    if column.bar_of is None:
        return []
    known = [float(value) if _is_known(value) else 0.0 for value in values]
    whole = column.bar_of or max(known, default=0.0)
    return [value / whole for value in known] if whole > 0 else []


def _is_known(value: Any) -> bool:
    return value is not None and math.isfinite(value)
