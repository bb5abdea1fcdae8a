"""A study as a self-contained HTML page: answer, figures, trials, failures, how to reproduce it.

The page is one file: styles and SVG are inline, there are no scripts or external resources, and a
Content-Security-Policy enforces this. All text from studies (names, messages, logs) is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from autotune import __version__
from autotune.ports import StudyRecord
from autotune.report.figures import figures_of
from autotune.report.figures.figure_html import figures_html
from autotune.report.findings import winner_sentences
from autotune.report.notes import notes_of
from autotune.report.page_frame import html_table, whole_page
from autotune.report.reward_tables import formula_rows, front_rows, reward_rows
from autotune.report.study_facts import (
    FAILURE_HEADS,
    TRIAL_HEADS,
    counts_line,
    failure_row,
    reproduction_commands,
    setting_line,
    spec_text,
    speed_row,
    speedup_text,
    status_line,
    trial_row,
)
from autotune.report.target_text import HEADS, TEXT_COLUMNS, target_rows, target_sentences
from autotune.report.terminal import MEDIAN_STEP, speeds_line
from autotune.results.answers import result_from
from autotune.results.figure import Figure
from autotune.results.rankings import explained, front_documents
from autotune.results.result import Result
from autotune.results.target import target_of
from autotune.reward import STABILITY_RULE
from autotune.spec import Trial
from autotune.spec.config import sentence
from autotune.spec.texts.as_text import UNKNOWN

MAX_SPEC = 20_000
"""maximum number of characters of the spec to show"""


def html_report(record: StudyRecord, trials: Sequence[Trial]) -> str:
    """Return the page of a running or finished study."""
    result = result_from(record, trials)
    return report_page(result, figures_of(result))


def report_page(result: Result, figures: Sequence[Figure]) -> str:
    """Return the page of a result; `figures`: the figures drawn from it (`figures_of`)."""
    title = f"{result.record.study.name}: autotune report"
    body = [
        _head(result),
        _answer(result),
        _target(result),
        "<h2>Figures</h2>",
        figures_html(figures, is_open=not result.record.status.is_terminal),
        _rewards(result),
        _trials(result),
        _failures(result),
        _reproduce(result),
    ]
    return whole_page(title, body)


def _head(result: Result) -> str:
    record = result.record
    message = f'<p class="soft">{escape(sentence(record.message))}</p>' if record.message else ""
    return (
        f"<h1>{escape(record.study.name)}</h1><p>{escape(setting_line(result))}</p>"
        f'<p class="soft">{escape(f"study {record.id}, {status_line(result)}")}</p>{message}'
    )


def _answer(result: Result) -> str:
    best = result.best
    speed, step, memory, mfu = speed_row(best) if best else [UNKNOWN] * 4
    cards = [
        ("speedup over the baseline", speedup_text(result)),
        ("tokens per second", speed),
        (MEDIAN_STEP, step),
        ("peak memory", memory),
        ("model FLOPs utilization", mfu),
        ("runs", f"{len(result.shown):,}"),
    ]
    boxes = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in cards
        if value != UNKNOWN
    )
    winner = (
        f"<p>Best: <code>{escape(str(best.config))}</code> (trial {best.number})</p>"
        if best
        else ""
    )
    sentences = "".join(f"<p>{escape(line)}</p>" for line in winner_sentences(result))
    counts = f'<p class="soft">{escape(counts_line(result))}</p>'
    return f'<div class="cards">{boxes}</div><div class="answer">{winner}{sentences}{counts}</div>'


def _target(result: Result) -> str:
    """Return the ranking of the target's configs, for a study that ran proxies; otherwise an empty
    text."""
    target = target_of(result.record)
    if target is None:
        return ""
    sentences = "".join(f"<p>{escape(line)}</p>" for line in target_sentences(target))
    cells = [("", [escape(cell) for cell in row]) for row in target_rows(target)]
    table = html_table([(head, i not in TEXT_COLUMNS) for i, head in enumerate(HEADS)], cells)
    return f"<h2>Target {escape(target['cluster'])}</h2>{sentences}{table}"


def _rewards(result: Result) -> str:
    """Return the parts of the winner's reward, and the Pareto front."""
    if result.best is None:
        return ""
    explanation = explained(result)
    sentences = "".join(f"<p>{escape(sentence(line))}</p>" for line in explanation["text"])
    parts = f"<h2>Reward by parts</h2>{sentences}" + _text_table(*reward_rows(explanation), text=1)
    parts += f'<p class="soft">{STABILITY_RULE}.</p>' + _text_table(
        *formula_rows(explanation), text=2
    )
    heads, rows = front_rows(front_documents(result))
    caption = (
        "No other measured config is at least as good in speed, stability, free memory and cost."
    )
    return (
        parts
        + "<h2>Pareto front</h2>"
        + _text_table(heads, rows, text=2)
        + f'<p class="soft">{caption}</p>'
    )


def _text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: int) -> str:
    """Return a table of plain text; its first `text` columns are words, the others numbers."""
    cells = [("", [escape(cell).replace("  ", "&emsp;") for cell in row]) for row in rows]
    return html_table([(head, i >= text) for i, head in enumerate(heads)], cells)


def _trials(result: Result) -> str:
    if not result.shown:
        return ""
    rows, notes = [], notes_of(result.shown)
    for t in result.shown:
        number, label, status, *rest = map(escape, trial_row(t, notes.cells[t.number]))
        label = f'<span title="{escape(str(t.config))}">{label}</span>'
        status = f'<span class="{escape(t.status)}">{status}</span>'
        won = result.best is not None and t.number == result.best.number
        rows.append(("won" if won else "", [number, label, status, *rest]))
    lines = (speeds_line(result.shown), *notes.shared)
    under = "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)
    return "<h2>Runs</h2>" + html_table(TRIAL_HEADS, rows) + under


def _failures(result: Result) -> str:
    if not result.failed:
        return ""
    rows = []
    for t in result.failed:
        *cells, message = map(escape, failure_row(t))
        evidence = (
            "\n".join(filter(None, [t.failure.exception, *t.failure.log_tail])) if t.failure else ""
        )
        shown = (
            f"<details><summary>evidence</summary><pre>{escape(evidence)}</pre></details>"
            if evidence
            else ""
        )
        rows.append(("", [*cells, f"{message}{shown}"]))
    return "<h2>What failed</h2>" + html_table(FAILURE_HEADS, rows)


def _reproduce(result: Result) -> str:
    best: dict[str, Any] = result.best.config.to_dict() if result.best is not None else {}
    config = (
        f"<p>The best config:</p><pre>{escape(json.dumps(best, indent=2))}</pre>" if best else ""
    )
    return (
        f"<h2>How to reproduce the study</h2><p>Seed {result.record.study.seed}; written by autotune {escape(__version__)}.</p>"
        f"<pre>{escape(chr(10).join(reproduction_commands(result)))}</pre>{config}"
        f"<p>The study as submitted (JSON is valid YAML):</p><pre>{escape(spec_text(result, most=MAX_SPEC))}</pre>"
    )
