"""A table that suits the width it is printed in.

A table of trials has more to say than a narrow terminal can show. Left to itself rich narrows every
column that may wrap, to one letter a line if need be, and then those that may not. A `FittedTable`
leaves out whole columns instead, in the order its author asks for, and only then shortens those
that may be shortened.

A table that programs can read where nobody looks at it: in a terminal as rich draws it, in a file
or a pipe as lines of cells with tabs between them.

The first line of a piped table holds the headings. Cells are whole: nothing is cut short, wrapped,
padded or colored. What stands under a table comes after its lines. Text is shown as it is, never
read as rich's markup, in which the `[ray]` of `autotune-parallel[ray]` would be a color; what has
colors is a `Text`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text


UNBOUNDED = 100_000
"""columns of a terminal that nothing needs more of"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and how it gives way."""

    key: str
    """what a stage calls it"""
    heading: str | None = None
    """its heading; None is the key"""
    right: bool = False
    """set flush right, as numbers are"""
    most: int | None = None
    """columns of the terminal beyond which it is cut short even where there is room"""
    least: int = 1
    """columns of the terminal below which it is not shortened"""
    cut: bool = True
    """where it is narrower than its text: cut short, or else wrapped between words"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """One way to show a table."""

    without: frozenset[str] = frozenset()
    """keys of the columns that are left out"""
    shorten: tuple[str, ...] = ()
    """keys of the columns that may be shortened, first to last"""
    close: bool = False
    """whether one space is between columns"""


@dataclass(slots=True, kw_only=True)
class FittedTable:
    """Rows of cells under `columns`; a rich renderable."""

    empty: Callable[[], Table]
    """makes the table that the columns and rows are put into"""
    columns: Sequence[Column]
    stages: Sequence[Shortening] = (Shortening(),)
    """from the widest terminal to the narrowest: the first that fits is shown, else the last"""
    ellipsis: bool = True
    """whether what is cut short ends in an ellipsis, which is not ASCII"""
    rows: list[tuple[tuple[str | Text, ...], str]] = field(default_factory=list)
    caption: str | Text | None = None

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Adds a row: one cell for each column, those that may be left out too."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"a row needs {len(self.columns)} cells, one for each column, but got {len(cells)}"
            )
        self.rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table of the first stage that fits; in a file or a pipe that of the first stage,
        whole."""
        if not options.is_terminal:
            yield self._table(self.stages[0], {})
            return
        unbounded = options.update(width=UNBOUNDED)
        for stage in self.stages:
            excess = (
                console.measure(self._table(stage, {}), options=unbounded).maximum
                - options.max_width
            )
            widths: dict[str, int] = {}
            for key in stage.shorten:
                natural, least = self._natural(key)
                widths[key] = max(min(least, natural), natural - max(0, excess))
                excess -= natural - widths[key]
            if excess <= 0 or stage is self.stages[-1]:
                yield self._table(stage, widths)
                return

    def _natural(self, key: str) -> tuple[int, int]:
        """The width that a column would like to have, and the least."""
        from rich.cells import cell_len

        place = [column.key for column in self.columns].index(key)
        column = self.columns[place]
        texts = [self._heading(column), *(cells[place] for cells, _ in self.rows)]
        longest = max(cell_len(str(text)) for text in texts)
        return min(longest, column.most or longest), column.least

    @staticmethod
    def _heading(column: Column) -> str:
        return column.key if column.heading is None else column.heading

    def _table(self, stage: Shortening, widths: Mapping[str, int]) -> Table:
        table = self.empty()
        table.caption = self.caption
        if stage.close:
            table.padding = 0
        shown = [
            place for place, column in enumerate(self.columns) if column.key not in stage.without
        ]
        for column in (self.columns[place] for place in shown):
            table.add_column(
                self._heading(column),
                justify="right" if column.right else "left",
                no_wrap=column.cut or column.key not in widths,
                overflow="ellipsis" if self.ellipsis else "crop",
                width=widths.get(column.key),
                max_width=column.most,
            )
        for cells, style in self.rows:
            table.add_row(*(cells[place] for place in shown), style=style)
        return table


@final
class TabTable(Table):
    """A rich table; tab-separated lines where the console is no terminal."""

    def add_column(
        self, header: RenderableType = "", footer: RenderableType = "", **options: Any
    ) -> None:
        """Adds a column."""
        super().add_column(_as_it_is(header), _as_it_is(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Adds a row."""
        super().add_row(*(None if cell is None else _as_it_is(cell) for cell in cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as the console shows it."""
        if options.is_terminal:
            self.title = self.title and _as_it_is(self.title, "table.title")
            self.caption = self.caption and _as_it_is(self.caption, "table.caption")
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*((column.header, *column.cells) for column in self.columns), strict=True):
            yield Segment("\t".join(map(_plain, row)) + "\n")
        for line in _plain(self.caption or "", keep_lines=True).splitlines():
            yield Segment(line + "\n")


def _as_it_is(text: Any, style: str = "") -> Any:
    return Text(text, style=style) if isinstance(text, str) else text


def _plain(cell: Any, *, keep_lines: bool = False) -> str:
    """A cell without colors; without line ends and tabs too, which would make two cells of it."""
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return text if keep_lines else " ".join(text.split())
