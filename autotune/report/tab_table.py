"""A table that programs can read where nobody looks at it: in a terminal as rich draws it, in a file or a pipe as lines of cells with tabs between them.

The first line of a piped table holds the headings. Cells are whole: nothing is cut short, wrapped, padded or coloured. What stands under a table comes
after its lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@final
class TabTable(Table):
    """A rich table; tab-separated lines where the console is no terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as the console shows it."""
        if options.is_terminal:
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*((column.header, *column.cells) for column in self.columns), strict=True):
            yield Segment("\t".join(map(_plain, row)) + "\n")
        for line in _plain(self.caption or "", keep_lines=True).splitlines():
            yield Segment(line + "\n")


def _plain(cell: Any, *, keep_lines: bool = False) -> str:
    """A cell without markup; without line ends and tabs too, which would make two cells of it."""
    text = (
        Text.from_markup(cell).plain if isinstance(cell, str) else cell.plain if isinstance(cell, Text) else str(cell)
    )
    return text if keep_lines else " ".join(text.split())
