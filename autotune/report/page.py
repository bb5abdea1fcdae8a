"""One study as a self-contained HTML page: answer, figures, trials, failures, how to reproduce it.

Everything is inside the one file: styles and SVG inline, no script, nothing fetched, and a Content-Security-Policy that says so. All
text from studies (names, messages, logs) is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from autotune import __version__
from autotune.ports import StudyRecord
from autotune.report.figures import figures_of
from autotune.report.figures.figure_html import figure_html
from autotune.report.findings import status_counts, why
from autotune.report.notes import infeasible_line, notes_of
from autotune.report.page_frame import html_table, whole_page
from autotune.report.reward_tables import formula_rows, front_rows, reward_rows
from autotune.report.target_text import HEADS, TEXT_COLUMNS, target_rows, target_sentences
from autotune.report.terminal import format_bytes, format_count, format_duration, speeds_line
from autotune.results.answers import result_from
from autotune.results.explanations import explained
from autotune.results.rankings import front_documents
from autotune.results.result import Result
from autotune.results.target import target_of
from autotune.reward import STABILITY_RULE, tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label
from autotune.spec.speedup import format_speedup
from autotune.study.passed_runner import PASSED
from autotune.trainers import python_line

MAX_SPEC = 20_000
"""characters of the spec that are shown"""


def html_report(record: StudyRecord, trials: Sequence[Trial]) -> str:
    """The page of a study, running or finished."""
    found = result_from(record, trials)
    study = record.study
    title = f"{study.name}: autotune report"
    body = [
        _head(found),
        _answer(found),
        _target(found),
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(figure_html(figure) for figure in figures_of(found)),
        "</div>",
        _rewards(found),
        _trials(found),
        _failures(found),
        _reproduce(found),
    ]
    return whole_page(title, body)


def _head(found: Result) -> str:
    record, workload = found.record, found.record.study.workload
    batch = ", ".join(map(str, workload.global_batch_sizes))
    facts = (
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"sequences of {workload.seq_len} tokens, {batch} per step, trainer {record.study.trainer}, "
        f"searcher {record.study.searcher}, runner {record.study.runner}"
    )
    when = f"study {record.id}, {record.status.lower()}"
    when += f", {record.started_at:%Y-%m-%d %H:%M} UTC" if record.started_at else ""
    when += f", {format_duration(record.elapsed_s)}" if record.elapsed_s else ""
    message = f'<p class="soft">{escape(record.message)}</p>' if record.message else ""
    return f'<h1>{escape(record.study.name)}</h1><p>{escape(facts)}</p><p class="soft">{escape(when)}</p>{message}'


def _speedup(found: Result) -> str:
    if found.speedup is None:
        return "–"
    return format_speedup(found.speedup, found.speedup_low, found.speedup_high, times="×")


def _answer(found: Result) -> str:
    best = found.best
    cards = [
        ("speedup over the default", _speedup(found)),
        ("tokens per second", format_count(tokens_per_s(best)) if best else "–"),
        ("step time", format_duration(best.measurement.step_time_s) if best and best.measurement else "–"),
        ("peak memory", format_bytes(best.measurement.peak_memory_bytes if best and best.measurement else None)),
    ]
    mfu = best.measurement.mfu if best and best.measurement else None
    if mfu is not None:
        cards.append(("model FLOPs utilization", f"{mfu:.1%}"))
    counts = status_counts(found.shown)
    cards.append(("trials", f"{len(found.shown)}"))
    boxes = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in cards
    )
    winner = f"<p>Best: <code>{escape(str(best.config))}</code> (trial {best.number})</p>" if best else ""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in why(found))
    summary = ", ".join(f"{n} {status.lower()}" for status, n in counts.items()) or "no trials yet"
    summary += f"; {line}" if (line := infeasible_line(found.infeasible)) else ""
    return f'<div class="cards">{boxes}</div><div class="answer">{winner}{sentences}<p class="soft">{escape(summary)}</p></div>'


def _target(found: Result) -> str:
    """How the configs of the job that is meant rank, for a study that ran proxies of them."""
    target = target_of(found.record)
    if target is None:
        return ""
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in target_sentences(target))
    cells = [("", [escape(cell) for cell in row]) for row in target_rows(target)]
    table = html_table([(head, i not in TEXT_COLUMNS) for i, head in enumerate(HEADS)], cells)
    return f"<h2>Target {escape(target['cluster'])}</h2>{said}{table}"


def _rewards(found: Result) -> str:
    """What the winner's reward is made of, and what nothing beats."""
    if found.best is None:
        return ""
    explanation = explained(found)
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in explanation["text"])
    parts = f"<h2>Reward by parts</h2>{said}" + _words(*reward_rows(explanation), text=1)
    parts += f'<p class="soft">{STABILITY_RULE}.</p>' + _words(*formula_rows(explanation), text=2)
    heads, rows = front_rows(front_documents(found))
    caption = "No other measured config is at least as good in speed, stability, free memory and cost and better in one of them."
    return parts + "<h2>Pareto front</h2>" + _words(heads, rows, text=2) + f'<p class="soft">{caption}</p>'


def _words(heads: Sequence[str], rows: Sequence[Sequence[str]], *, text: int) -> str:
    """A table of plain text whose first `text` columns are words."""
    cells = [("", [escape(cell).replace("  ", "&emsp;") for cell in row]) for row in rows]
    return html_table([(head, i >= text) for i, head in enumerate(heads)], cells)


def _trials(found: Result) -> str:
    if not found.shown:
        return ""
    heads = [
        *(("#", True), ("config", False), ("status", False), ("predicted", True), ("measured", True), ("step", True)),
        *(("spread", True), ("memory", True), ("reward", True), ("why", False)),
    ]
    rows, notes = [], notes_of(found.shown)
    for t in found.shown:
        m = t.measurement if t.is_measured else None
        peak = t.measurement.peak_memory_bytes if t.measurement else None
        label = config_label(t.config) + ("" if t.purpose is TrialPurpose.SEARCH else f" ({t.purpose})")
        cells = [
            str(t.number),
            f'<span title="{escape(str(t.config))}">{escape(label)}</span>',
            f'<span class="{escape(t.status)}">{escape(t.status.lower())}</span>',
            format_count(float(t.estimate.tokens_per_s)) if t.estimate else "–",
            format_count(m.tokens_per_s) if m else "–",
            format_duration(m.step_time_s) if m else "–",
            f"{m.step_time_spread:.1%}" if m else "–",
            format_bytes(peak) if peak else "–",
            f"{t.reward.total:.3f}" if t.reward else "–",
            escape(notes.cells[t.number]),
        ]
        rows.append(("won" if found.best is not None and t.number == found.best.number else "", cells))
    lines = (speeds_line(found.shown), *notes.shared)
    under = "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)
    return "<h2>Trials</h2>" + html_table(heads, rows) + under


def _failures(found: Result) -> str:
    if not found.failed:
        return ""
    rows = []
    for t in found.failed:
        failure = t.failure
        if failure is None:
            continue
        where = ", ".join(
            f"{name} {value}" for name, value in (("rank", failure.rank), ("step", failure.step)) if value is not None
        )
        evidence = "\n".join(filter(None, [failure.exception, *failure.log_tail]))
        shown = f"<details><summary>evidence</summary><pre>{escape(evidence)}</pre></details>" if evidence else ""
        cells = [
            str(t.number),
            escape(config_label(t.config)),
            escape(str(failure.kind).lower().replace("_", " ")),
            escape(where) or "–",
            f"{escape(failure.message)}{shown}",
        ]
        rows.append(("", cells))
    heads = [("#", True), ("config", False), ("kind", False), ("where", False), ("what happened", False)]
    return "<h2>What failed</h2>" + html_table(heads, rows)


def _reproduce(found: Result) -> str:
    record = found.record
    commands = [f"autotune status {record.id}"]
    line = python_line(record.study.trainer)
    if found.best is not None:
        export = f"autotune export {record.id} --to {_word(record.study.trainer)} -o launch"
        commands.append(f"# in Python: {line}" if line else export)
    if record.study.runner.startswith(PASSED):
        commands.append("# in Python: the call that started the study, which made the document below")
    else:
        commands.append("autotune tune study.yaml   # the document below")
    spec = json.dumps(record.spec, indent=2, default=str)
    spec = spec if len(spec) <= MAX_SPEC else spec[:MAX_SPEC] + "\n... (cut)"
    best: dict[str, Any] = found.best.config.to_dict() if found.best is not None else {}
    config = f"<p>The best config:</p><pre>{escape(json.dumps(best, indent=2))}</pre>" if best else ""
    return (
        f"<h2>How to reproduce it</h2><p>Seed {record.study.seed}; written by autotune {escape(__version__)}.</p>"
        f"<pre>{escape(chr(10).join(commands))}</pre>{config}"
        f"<p>The study as it was submitted (YAML reads JSON):</p><pre>{escape(spec)}</pre>"
    )


def _word(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else "TRAINER"
