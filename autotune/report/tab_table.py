"""A table that programs can read where nobody looks at it: in a terminal as rich draws it, in a file or a pipe as lines of cells with tabs between them.

The first line of a piped table holds the headings. Cells are whole: nothing is cut short, wrapped, padded or coloured. What stands under a table comes
after its lines. Text is shown as it is, never read as rich's markup, in which the `[ray]` of `autotune-parallel[ray]` would be a colour; what has colours is a `Text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


@final
class TabTable(Table):
    """A rich table; tab-separated lines where the console is no terminal."""

    def add_column(self, header: RenderableType = "", footer: RenderableType = "", **options: Any) -> None:
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
    """A cell without colours; without line ends and tabs too, which would make two cells of it."""
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return text if keep_lines else " ".join(text.split())
