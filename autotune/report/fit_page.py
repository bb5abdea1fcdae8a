"""The answer of `autotune fit` as a self-contained HTML page: verdict, memory over the step,
tables. All text is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from autotune import __version__
from autotune.plan.fit import Fit
from autotune.plan.fit.findings import moment_words
from autotune.report.fit_text import (
    TextTable,
    closing_lines,
    other_verdict_line,
    peak_lines,
    problem_lines,
    rank_names,
    summary_table,
    tables,
    verdict_line,
    work_line,
    workload_line,
)
from autotune.report.memory_over_step import CATEGORY_COLORS, CATEGORY_NAMES, columns, phases
from autotune.report.page_frame import html_table, whole_page
from autotune.report.svg.stacked_area import Phase, stacked_area
from autotune.report.terminal import format_bytes
from autotune.spec import DryRun, config_label

MAX_COLUMNS = 240
"""maximum number of columns of a figure"""
MAX_CAPACITY_RATIO = 4.0
"""if a GPU's memory is more than this factor above the peak, it is not drawn"""


def fit_page(fits: Sequence[Fit]) -> str:
    """Return the page for one or several configs."""
    workload = fits[0].workload
    title = f"Will {workload.model.name} fit?"
    body = [f"<h1>{escape(title)}</h1><p>{escape(workload_line(workload))}</p>"]
    if len(fits) > 1:
        body.append(_table(summary_table(fits)))
    for fit in fits:
        body += _answer(fit)
    body.append(f'<p class="soft">written by autotune {escape(__version__)}</p>')
    return whole_page(f"{title} autotune fit", body)


def memory_figure(fit: Fit, run: DryRun) -> str:
    """Return the figure of one rank's memory over the second optimizer step, stacked by category,
    with the GPU's memory as a line; empty without samples."""
    shown = columns(run.timeline, MAX_COLUMNS)
    if not shown:
        return ""
    peak = max(sample.total_bytes for sample in shown)
    is_near = fit.memory_bytes <= MAX_CAPACITY_RATIO * peak
    return stacked_area(
        {
            name: [float(sample.parts_bytes.get(name, 0)) for sample in shown]
            for name in CATEGORY_NAMES
        },
        names=CATEGORY_NAMES,
        colors=CATEGORY_COLORS,
        titles=[
            f"{moment_words(s, fit.config.accumulation_steps)}: {format_bytes(s.total_bytes)}"
            for s in shown
        ],
        phases=[Phase(label=label, first=first, end=end) for label, first, end in phases(shown)],
        limit=fit.memory_bytes if is_near else None,
        limit_label=f"{fit.workload.cluster.gpu.name}: {format_bytes(fit.memory_bytes)}",
        number=format_bytes,
        unit=2.0 ** (10 * math.floor(math.log2(max(peak, 1.0)) / 10)),
        description="Allocated memory over the second optimizer step, by category",
    )


def _answer(fit: Fit) -> list[str]:
    parts = [
        f"<h2><code>{escape(config_label(fit.config))}</code></h2>",
        '<div class="answer">',
        *(f"<p><b>{escape(line)}</b></p>" for line in (*problem_lines(fit), verdict_line(fit))),
        *(f"<p>{escape(line)}</p>" for line in (other_verdict_line(fit),) if line),
        "</div>",
    ]
    for name, run in zip(rank_names(fit), fit.runs, strict=True):
        if figure := memory_figure(fit, run):
            caption = "Allocated memory over the second optimizer step in the order of the operations; widths do not show time."
            parts.append(
                f'<figure class="autotune-figure"><figcaption><h3>Memory over the step, {escape(name)}</h3><p>{escape(caption)}</p></figcaption>{figure}</figure>'
            )
    if fit.runs:
        parts += [f"<p>{escape(line)}</p>" for line in (*peak_lines(fit), work_line(fit))]
    parts += [f"<h3>{escape(rows.title)}</h3>{_table(rows)}" for rows in tables(fit)]
    parts += [f'<p class="soft">{escape(line)}</p>' for line in closing_lines(fit)]
    return parts


def _table(rows: TextTable) -> str:
    heads = [(head, index >= rows.text) for index, head in enumerate(rows.heads)]
    return html_table(heads, [("", [escape(cell) for cell in row]) for row in rows.rows])
