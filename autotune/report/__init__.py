"""What people see of studies: figures, a self-contained HTML page, Markdown for a pull request, tables and bars in a terminal, two studies side by side.

figures/          figures of a study, as values      svg/              drawing: axes, bars, tiles, lanes
page.py           a study as one HTML page           page_frame.py     a whole HTML page, tables
markdown_page.py  a study as Markdown                markdown_text.py  text, tables and bars in Markdown
study_facts.py    what both say of a study           findings.py       why it won, in sentences
reward_tables.py  rewards by parts, the Pareto front  notes.py         notes of trials, shared ones once
comparison.py     two studies side by side
terminal.py       tables and bars for the terminal   table_layout.py   a table that suits the terminal's width
fit_text.py       "will it fit?" as words and rows   fit_page.py       the same as one HTML page with its figure
memory_over_step.py  memory over a step, as a sketch
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from autotune.ports import StudyRecord
    from autotune.report.terminal import Palette
    from autotune.spec import Trial

__all__ = ["compare", "html_report", "markdown_report"]


def html_report(record: StudyRecord, trials: Sequence[Trial]) -> str:
    """The page of a study, running or finished; see `page`."""
    from autotune.report import page

    return page.html_report(record, trials)


def markdown_report(record: StudyRecord, trials: Sequence[Trial], *, service: str = "") -> str:
    """The report of a study as Markdown, for a pull request; see `markdown_page`."""
    from autotune.report import markdown_page

    return markdown_page.markdown_report(record, trials, service=service)


def compare(
    first: tuple[StudyRecord, Sequence[Trial]],
    second: tuple[StudyRecord, Sequence[Trial]],
    *,
    palette: Palette | None = None,
) -> Table:
    """Two studies side by side, in the signs that `palette` (None: all of them) allows; see `comparison`."""
    from autotune.report import comparison
    from autotune.report.terminal import FULL

    return comparison.compare(first, second, palette=palette or FULL)
