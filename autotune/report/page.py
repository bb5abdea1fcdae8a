"""One study as a self-contained HTML page: answer, figures, trials, failures, how to reproduce it.

Everything is inside the one file: styles and SVG inline, no script, nothing fetched, and a
Content-Security-Policy that says so. All text from studies (names, messages, logs) is escaped.
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
from autotune.report.findings import why
from autotune.report.notes import notes_of
from autotune.report.page_frame import html_table, whole_page
from autotune.report.reward_tables import formula_rows, front_rows, reward_rows
from autotune.report.study_facts import (
    FAILURE_HEADS,
    TRIAL_HEADS,
    commands_again,
    counts_line,
    failure_row,
    setting_line,
    spec_text,
    speed_row,
    speedup_word,
    trial_row,
    when_line,
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
"""characters of the spec that are shown"""


def html_report(record: StudyRecord, trials: Sequence[Trial]) -> str:
    """The page of a study, running or finished."""
    found = result_from(record, trials)
    return report_page(found, figures_of(found))


def report_page(found: Result, figures: Sequence[Figure]) -> str:
    """The page of a result, with figures that were drawn of it (`figures_of`)."""
    title = f"{found.record.study.name}: autotune report"
    body = [
        _head(found),
        _answer(found),
        _target(found),
        "<h2>Figures</h2>",
        figures_html(figures, is_open=not found.record.status.is_terminal),
        _rewards(found),
        _trials(found),
        _failures(found),
        _reproduce(found),
    ]
    return whole_page(title, body)


def _head(found: Result) -> str:
    record = found.record
    message = f'<p class="soft">{escape(sentence(record.message))}</p>' if record.message else ""
    return (
        f"<h1>{escape(record.study.name)}</h1><p>{escape(setting_line(found))}</p>"
        f'<p class="soft">{escape(f"study {record.id}, {when_line(found)}")}</p>{message}'
    )


def _answer(found: Result) -> str:
    best = found.best
    speed, step, memory, mfu = speed_row(best) if best else [UNKNOWN] * 4
    cards = [
        ("speedup over the baseline", speedup_word(found)),
        ("tokens per second", speed),
        (MEDIAN_STEP, step),
        ("peak memory", memory),
        ("model FLOPs utilization", mfu),
        ("runs", f"{len(found.shown):,}"),
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
    sentences = "".join(f"<p>{escape(line)}</p>" for line in why(found))
    counts = f'<p class="soft">{escape(counts_line(found))}</p>'
    return f'<div class="cards">{boxes}</div><div class="answer">{winner}{sentences}{counts}</div>'


def _target(found: Result) -> str:
    """How the configs of the job that is meant rank, for a study that ran proxies of them."""
    target = target_of(found.record)
    if target is None:
        return ""
    said = "".join(f"<p>{escape(line)}</p>" for line in target_sentences(target))
    cells = [("", [escape(cell) for cell in row]) for row in target_rows(target)]
    table = html_table([(head, i not in TEXT_COLUMNS) for i, head in enumerate(HEADS)], cells)
    return f"<h2>Target {escape(target['cluster'])}</h2>{said}{table}"


def _rewards(found: Result) -> str:
    """What the winner's reward is made of, and what nothing beats."""
    if found.best is None:
        return ""
    explanation = explained(found)
    said = "".join(f"<p>{escape(sentence(line))}</p>" for line in explanation["text"])
    parts = f"<h2>Reward by parts</h2>{said}" + _words(*reward_rows(explanation), text=1)
    parts += f'<p class="soft">{STABILITY_RULE}.</p>' + _words(*formula_rows(explanation), text=2)
    heads, rows = front_rows(front_documents(found))
    caption = (
        "No other measured config is at least as good in speed, stability, free memory and cost."
    )
    return (
        parts
        + "<h2>Pareto front</h2>"
        + _words(heads, rows, text=2)
        + f'<p class="soft">{caption}</p>'
    )


def _words(heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: int) -> str:
    """A table of plain text whose first `text` columns are words."""
    cells = [("", [escape(cell).replace("  ", "&emsp;") for cell in row]) for row in rows]
    return html_table([(head, i >= text) for i, head in enumerate(heads)], cells)


def _trials(found: Result) -> str:
    if not found.shown:
        return ""
    rows, notes = [], notes_of(found.shown)
    for t in found.shown:
        number, label, status, *rest = map(escape, trial_row(t, notes.cells[t.number]))
        label = f'<span title="{escape(str(t.config))}">{label}</span>'
        status = f'<span class="{escape(t.status)}">{status}</span>'
        won = found.best is not None and t.number == found.best.number
        rows.append(("won" if won else "", [number, label, status, *rest]))
    lines = (speeds_line(found.shown), *notes.shared)
    under = "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)
    return "<h2>Runs</h2>" + html_table(TRIAL_HEADS, rows) + under


def _failures(found: Result) -> str:
    if not found.failed:
        return ""
    rows = []
    for t in found.failed:
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


def _reproduce(found: Result) -> str:
    best: dict[str, Any] = found.best.config.to_dict() if found.best is not None else {}
    config = (
        f"<p>The best config:</p><pre>{escape(json.dumps(best, indent=2))}</pre>" if best else ""
    )
    return (
        f"<h2>How to reproduce the study</h2><p>Seed {found.record.study.seed}; written by autotune {escape(__version__)}.</p>"
        f"<pre>{escape(chr(10).join(commands_again(found)))}</pre>{config}"
        f"<p>The study as submitted (JSON is valid YAML):</p><pre>{escape(spec_text(found, most=MAX_SPEC))}</pre>"
    )
