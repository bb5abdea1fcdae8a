"""A figure as Markdown in an expandable section: its description, and its data as a table with bars
next to the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autotune.report.markdown_text import bar, code, details, table, text
from autotune.results.figure import Column, Figure

MAX_ROWS = 12
"""maximum number of rows of data; the CSV of the HTML report has all rows"""


def figure_markdown(figure: Figure) -> str:
    """Return the figure. Of longer data it has `MAX_ROWS` rows, evenly spread from the first to the
    last."""
    data = figure.table
    count = len(data.rows)
    indices = (
        range(count)
        if count <= MAX_ROWS
        else [i * (count - 1) // (MAX_ROWS - 1) for i in range(MAX_ROWS)]
    )
    lengths = [
        _lengths(column, [row[i] for row in data.rows]) for i, column in enumerate(data.columns)
    ]
    heads: list[tuple[str, bool]] = []
    for column, length in zip(data.columns, lengths, strict=True):
        heads += [(column.head, column.is_number), *([("", False)] if length else [])]
    rows = []
    for index in indices:
        cells = []
        for column, length, value in zip(data.columns, lengths, data.rows[index], strict=True):
            shown = column.shown(value)
            cells += [
                code(shown) if column.name == "config" else text(shown),
                *([bar(length[index])] if length else []),
            ]
        rows.append(cells)
    omission = f"{MAX_ROWS} of {count:,} rows, evenly spread." if count > MAX_ROWS else ""
    return details(
        figure.title, text(figure.shows, most=len(figure.shows)), table(heads, rows), omission
    )


def _lengths(column: Column, values: Sequence[Any]) -> list[float]:
    """Return the relative length of each value's bar; empty for a column without bars."""
    if column.bar_of is None:
        return []
    lengths = [float(value) if _is_known(value) else 0.0 for value in values]
    whole = column.bar_of or max(lengths, default=0.0)
    return [value / whole for value in lengths] if whole > 0 else []


def _is_known(value: Any) -> bool:
    return value is not None and math.isfinite(value)
