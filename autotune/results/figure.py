"""A figure: a drawing with its description and its data, in SI units (seconds, bytes, tokens/s).

Reports, trial pages and notebooks (`_repr_html_`) show the same figures. In Python they have names:

    result.plot("best_so_far")            the figure; a notebook shows it
    result.plot.best_so_far()             the same, with tab completion
    list(result.plot)                     the names of the figures that this result has data for
    result.plot("budget").save("b.svg")   save the drawing; .html: with its text; .csv: the data

The functions that draw figures are registered under `autotune.views` (`autotune.registry`), because
this package must not import reports.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from autotune import assets
from autotune.errors import SpecError
from autotune.spec.texts.as_text import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a figure's data."""

    name: str
    """column name in CSV; ends in the unit"""
    head: str
    """column heading for readers"""
    show: Callable[[Any], str] = field(default=str, compare=False)
    """formats a value"""
    is_number: bool = True
    bar_of: float | None = None
    """maximum of the bar that Markdown draws next to the value; with 0 the largest value, with None
    there is no bar"""

    def shown(self, value: Any) -> str:
        """Return the formatted value; a dash if there is none."""
        return (
            UNKNOWN
            if value is None or (isinstance(value, float) and math.isnan(value))
            else self.show(value)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureTable:
    """The data of a figure."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    """plain values; None if missing"""

    def csv(self) -> str:
        """Return all rows as CSV (RFC 4180), below a line with the column names."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([["" if value is None else value for value in row] for row in self.rows])
        return out.getvalue()

    def shown_rows(self, most: int) -> list[list[str]]:
        """Return the first `most` rows, formatted."""
        return [
            [c.shown(v) for c, v in zip(self.columns, row, strict=True)] for row in self.rows[:most]
        ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Figure:
    """A figure for a study or a trial."""

    name: str
    """name in URLs, files and `Result.plot`; it never changes"""
    title: str
    shows: str
    """what the figure shows, with units, in one or two sentences"""
    how_to_read: str
    """what the symbols mean, and what to look for"""
    svg: str
    """inline SVG; its colors are classes of `dashboards/web/figures.css`"""
    table: FigureTable
    """the data"""

    def csv(self) -> str:
        """Return the data as CSV."""
        return self.table.csv()

    def picture(self) -> str:
        """Return the drawing as a self-contained SVG file, in light colors."""
        return picture_of(self.svg)

    def save(self, path: str | Path) -> Path:
        """Write the drawing (`.svg`), the figure with its text (`.html`) or its data (`.csv`), and
        return the path.

        Raises `SpecError` for any other suffix, and `OSError` if the file cannot be written.
        """
        target = Path(path)
        writers: Mapping[str, Callable[[], str]] = {
            ".svg": self.picture,
            ".html": self._page,
            ".csv": self.csv,
        }
        if target.suffix.lower() not in writers:
            raise SpecError(
                f"a figure is saved as .svg, .html or .csv, but the file is {target.name!r}",
                remedy=f"use {target.stem}.svg",
                field="path",
            )
        target.write_text(writers[target.suffix.lower()](), encoding="utf-8")
        return target

    def __repr__(self) -> str:
        return f"Figure({self.title!r})"

    def __str__(self) -> str:
        return f"{self.title}: {self.shows} {self.how_to_read}"

    def _repr_html_(self) -> str:
        """Return the figure in a notebook, with its style sheet."""
        return (
            f'<style>{assets.web_file("figures.css")}</style><figure class="autotune-figure" style="max-width:640px"><figcaption>'
            f"<strong>{escape(self.title)}</strong><p>{escape(self.shows)}</p></figcaption>{self.svg}<p>{escape(self.how_to_read)}</p></figure>"
        )

    def _page(self) -> str:
        """Return the figure with its text as an HTML page."""
        head = f'<meta charset="utf-8"><title>{escape(self.title)}</title>'
        return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{self._repr_html_()}</body></html>\n'


def picture_of(svg: str) -> str:
    """Return inline SVG as a self-contained file, in light colors."""
    head, _, rest = svg.partition(">")
    opening = head.replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="autotune-figure picture" ', 1
    )
    return f"{opening}><style>{assets.web_file('figures.css')}</style>{rest}"


def table_of(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> FigureTable:
    """Return a table with these rows."""
    return FigureTable(columns=tuple(columns), rows=tuple(tuple(row) for row in rows))
