"""Tables that adapt to the width of the terminal.

Rich narrows all columns that may wrap, down to one letter per line, and then the others. A
`FittedTable` instead omits whole columns in a given order, and only then shortens columns that may
be shortened.

A `TabTable` is drawn by rich in a terminal. In a file or a pipe it is tab-separated lines, for
programs: the first line has the headings, and cells are never cut, wrapped, padded or colored. The
caption follows the rows. Text is never interpreted as rich's markup, in which the `[ray]` of
`autotune-parallel[ray]` would be a color; colored cells are `Text` objects.
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
"""width of an unlimited terminal, characters"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, and how it adapts to a narrow terminal."""

    key: str
    """name of the column in a `TableLayout`"""
    heading: str | None = None
    """heading; default: the key"""
    right: bool = False
    """whether cells are right-aligned, as numbers are"""
    max_width: int | None = None
    """largest width, characters, even in a wide terminal"""
    min_width: int = 1
    """minimum width, characters, to which it is shortened"""
    cut: bool = True
    """whether text that is too long is cut; otherwise it is wrapped between words"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """One way to show a table."""

    hidden: frozenset[str] = frozenset()
    """keys of the omitted columns"""
    shorten: tuple[str, ...] = ()
    """keys of the columns that may be shortened, in this order"""
    compact: bool = False
    """whether columns are separated by one space only"""


@dataclass(slots=True, kw_only=True)
class FittedTable:
    """Rows of cells under `columns`; a rich renderable."""

    empty: Callable[[], Table]
    """makes the empty table to which columns and rows are added"""
    columns: Sequence[Column]
    layouts: Sequence[TableLayout] = (TableLayout(),)
    """layouts from the widest terminal to the narrowest: the first that fits is used, otherwise the
    last"""
    ellipsis: bool = True
    """whether cut text ends in an ellipsis, which is not ASCII"""
    rows: list[tuple[tuple[str | Text, ...], str]] = field(default_factory=list)
    caption: str | Text | None = None

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row with one cell for each column, including columns that may be omitted."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"a row needs {len(self.columns)} cells, one for each column, but got {len(cells)}"
            )
        self.rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table in the first layout that fits; in a file or a pipe, in the first
        layout."""
        if not options.is_terminal:
            yield self._table(self.layouts[0], {})
            return
        unbounded = options.update(width=UNBOUNDED)
        for layout in self.layouts:
            excess = (
                console.measure(self._table(layout, {}), options=unbounded).maximum
                - options.max_width
            )
            widths: dict[str, int] = {}
            for key in layout.shorten:
                wanted, min_width = self._width_range(key)
                widths[key] = max(min(min_width, wanted), wanted - max(0, excess))
                excess -= wanted - widths[key]
            if excess <= 0 or layout is self.layouts[-1]:
                yield self._table(layout, widths)
                return

    def _width_range(self, key: str) -> tuple[int, int]:
        """Return the width that a column's text needs, and the column's least width."""
        from rich.cells import cell_len

        index = [column.key for column in self.columns].index(key)
        column = self.columns[index]
        texts = [self._heading(column), *(cells[index] for cells, _ in self.rows)]
        longest = max(cell_len(str(text)) for text in texts)
        return min(longest, column.max_width or longest), column.min_width

    @staticmethod
    def _heading(column: Column) -> str:
        return column.key if column.heading is None else column.heading

    def _table(self, layout: TableLayout, widths: Mapping[str, int]) -> Table:
        table = self.empty()
        table.caption = self.caption
        if layout.compact:
            table.padding = 0
        shown = [
            index for index, column in enumerate(self.columns) if column.key not in layout.hidden
        ]
        for column in (self.columns[index] for index in shown):
            table.add_column(
                self._heading(column),
                justify="right" if column.right else "left",
                no_wrap=column.cut or column.key not in widths,
                overflow="ellipsis" if self.ellipsis else "crop",
                width=widths.get(column.key),
                max_width=column.max_width,
            )
        for cells, style in self.rows:
            table.add_row(*(cells[index] for index in shown), style=style)
        return table


@final
class TabTable(Table):
    """A rich table in a terminal; otherwise tab-separated lines."""

    def add_column(
        self, header: RenderableType = "", footer: RenderableType = "", **options: Any
    ) -> None:
        """Add a column."""
        super().add_column(_without_markup(header), _without_markup(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(
            *(None if cell is None else _without_markup(cell) for cell in cells), **options
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for the console."""
        if options.is_terminal:
            self.title = self.title and _without_markup(self.title, "table.title")
            self.caption = self.caption and _without_markup(self.caption, "table.caption")
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*((column.header, *column.cells) for column in self.columns), strict=True):
            yield Segment("\t".join(map(_plain_text, row)) + "\n")
        for line in _plain_text(self.caption or "", keep_lines=True).splitlines():
            yield Segment(line + "\n")


def _without_markup(text: Any, style: str = "") -> Any:
    """Return a string as `Text`, so that rich does not interpret its markup."""
    return Text(text, style=style) if isinstance(text, str) else text


def _plain_text(cell: Any, *, keep_lines: bool = False) -> str:
    """Return a cell's text without colors, and without the line ends and tabs that would split the
    cell."""
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return text if keep_lines else " ".join(text.split())
