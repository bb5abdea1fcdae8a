"""A study's report as GitHub-flavored Markdown, for a pull request: the answer first, then
expandable sections, with figures as tables with bars.

The report has at most `MAX_CHARACTERS`, so that it fits into a comment: of long tables only the
first rows are shown, and omitted figures are listed. All text from studies (names, messages) is
escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from autotune import __version__
from autotune.ports import StudyRecord
from autotune.report.figures import figures_of
from autotune.report.figures.figure_markdown import figure_markdown
from autotune.report.findings import winner_sentences
from autotune.report.markdown_text import bar, block, code, details, table, text
from autotune.report.notes import notes_of
from autotune.report.reward_tables import reward_rows
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
from autotune.results.rankings import explained
from autotune.results.result import Result
from autotune.results.target import target_of
from autotune.reward import STABILITY_RULE, tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label

MAX_CHARACTERS = 65_536
"""GitHub's limit for a comment or a description, characters"""
MAX_TRIALS, MAX_FAILURES, MAX_CONFIGS = 24, 8, 12
"""maximum number of rows of the tables"""
MAX_SPEC = 6_000
"""maximum number of characters of the spec to show"""
MAX_SENTENCE = 400
"""maximum number of characters in a line of text"""
ANSWER_HEADS = (
    *(("", False), ("trial", True), ("config", False), ("tokens/s", True), ("", False)),
    *((MEDIAN_STEP, True), ("peak memory", True), ("MFU", True)),
)
"""columns of the first table: (head, whether it has numbers)"""
HIDDEN_COLUMNS = ("spread", "reward")
"""columns of a trial that the report omits"""


def markdown_report(record: StudyRecord, trials: Sequence[Trial], *, service: str = "") -> str:
    """Return the report of a running or finished study. `service`: address of the service to link
    to; empty for no links."""
    result = result_from(record, trials)
    page = f"{service.rstrip('/')}/studies/{record.id}" if service else ""
    first = [
        _head(result, page),
        _answer(result, page),
        _target(result),
        _trials(result, page),
        _failures(result, page),
    ]
    last = [_reward_parts(result), _reproduction(result)]
    room = MAX_CHARACTERS - sum(len(part) + 2 for part in (*first, *last))
    return (
        "\n\n".join(filter(None, [*first, *_figures(figures_of(result), record.id, room), *last]))
        + "\n"
    )


def _head(result: Result, page: str) -> str:
    record = result.record
    gain = (
        ""
        if result.speedup is None and result.too_noisy is None
        else f": {speedup_text(result, over=' over the baseline')}"
    )
    study = f"[study {record.id}]({page})" if page else f"study {code(record.id)}"
    lines = [f"### {text(record.study.name)}{gain}", text(setting_line(result), most=MAX_SENTENCE)]
    message = f": {text(record.message, most=MAX_SENTENCE)}" if record.message else ""
    return "\n\n".join([*lines, f"{study}, {status_line(result)}{message}"])


def _answer(result: Result, page: str) -> str:
    """Return the table of the winner, the baseline and re-measured configs, and the reasons why the
    winner won."""
    candidates = [("**best**", result.best), ("baseline", result.baseline)]
    shown_numbers = {trial.number for _, trial in candidates if trial is not None}
    candidates += [
        ("", trial) for trial in result.confirmed[:MAX_CONFIGS] if trial.number not in shown_numbers
    ]
    measured = [
        (word, trial) for word, trial in candidates if trial is not None and trial.measurement
    ]
    if (
        result.best is not None
        and result.baseline is not None
        and result.best.number == result.baseline.number
    ):
        measured = measured[1:]
    top = max((tokens_per_s(trial) for _, trial in measured), default=0.0)
    rows = []
    for word, trial in measured:
        speed, *rest = map(text, speed_row(trial))
        rows.append(
            [
                word,
                _link(trial.number, page),
                code(config_label(trial.config)),
                speed,
                bar(tokens_per_s(trial) / top),
                *rest,
            ]
        )
    sentences = "\n".join(
        f"- {text(line, most=MAX_SENTENCE)}"
        for line in (*winner_sentences(result), *result.notes, counts_line(result))
    )
    winner = f"Best config: {code(str(result.best.config))}" if result.best is not None else ""
    return "\n\n".join(filter(None, [table(ANSWER_HEADS, rows) if rows else "", winner, sentences]))


def _target(result: Result) -> str:
    target = target_of(result.record)
    if target is None:
        return ""
    sentences = "\n".join(f"- {text(line, most=MAX_SENTENCE)}" for line in target_sentences(target))
    rows = _cells(target_rows(target)[:MAX_CONFIGS])
    heads = [(head, i not in TEXT_COLUMNS) for i, head in enumerate(HEADS)]
    return f"#### Target {text(target['cluster'])}\n\n{sentences}\n\n{table(heads, rows)}"


def _trials(result: Result, page: str) -> str:
    """Return the table of trials: the best, then the fastest, then trials without a speed. Final
    runs are only counted, because their configs' rows include them."""
    searched = [trial for trial in result.shown if trial.purpose is not TrialPurpose.FINAL]
    if not searched:
        return ""
    notes = notes_of(searched)
    shown = [i for i, (name, _) in enumerate(TRIAL_HEADS) if name not in HIDDEN_COLUMNS]
    best = result.best.number if result.best is not None else None
    ranked = sorted(
        searched,
        key=lambda t: (
            t.number != best,
            not t.is_measured,
            -tokens_per_s(t) if t.is_measured else t.number,
        ),
    )
    rows = []
    for trial in ranked[:MAX_TRIALS]:
        _, label, *words = (trial_row(trial, notes.cells[trial.number])[i] for i in shown)
        rows.append([_link(trial.number, page), code(label), *map(text, words)])
    count, num_hidden = len(ranked), len(ranked) - len(rows)
    finals = len(result.shown) - count
    lines = [
        speeds_line(result.shown, result.unmeasured_baseline),
        *notes.shared[:MAX_FAILURES],
        *([f"{num_hidden:,} more runs are not shown"] if num_hidden else []),
        *(
            [f"{finals:,} more runs re-measured the top configs for the figures above"]
            if finals
            else []
        ),
    ]
    notes_text = "\n".join(f"- {text(line, most=MAX_SENTENCE)}" for line in lines)
    return details(
        f"Runs before the finals ({count:,})",
        table([TRIAL_HEADS[i] for i in shown], rows),
        notes_text,
    )


def _failures(result: Result, page: str) -> str:
    """Return the table of the latest failures."""
    failed = result.failed
    if not failed:
        return ""
    rows = []
    for trial in failed[-MAX_FAILURES:]:
        _, label, kind, place, message = failure_row(trial)
        exception = trial.failure.exception if trial.failure else ""
        description = ": ".join(
            filter(None, [message, exception.splitlines()[0] if exception else ""])
        )
        rows.append(
            [
                _link(trial.number, page),
                code(label),
                text(kind),
                text(place),
                text(description, most=MAX_SENTENCE),
            ]
        )
    num_hidden = len(failed) - len(rows)
    return details(
        f"What failed ({len(failed):,})",
        table(FAILURE_HEADS, rows),
        f"{num_hidden:,} earlier failures are not shown." if num_hidden else "",
    )


def _figures(figures: Sequence[Figure], study: str, room: int) -> list[str]:
    """Return the figures that fit into `room` characters, in order, and a sentence that lists the
    others. Figures with the same columns share one table, so only the first is included."""
    tables = {figure.table.columns: figure for figure in reversed(figures)}
    parts, without_room = ["#### Figures"], []
    room -= MAX_SENTENCE
    for figure in (figure for figure in figures if tables[figure.table.columns] is figure):
        part = figure_markdown(figure)
        if len(part) + 2 <= room:
            room -= len(part) + 2
            parts.append(part)
        else:
            without_room.append(figure.title)
    omitted = f" Omitted to save space: {', '.join(without_room)}." if without_room else ""
    closing = f"All figures with their data: autotune report {study} -o report.html.{omitted}"
    return [*parts, text(closing, most=MAX_SENTENCE // 2)] if tables else []


def _reward_parts(result: Result) -> str:
    if result.best is None:
        return ""
    explanation = explained(result)
    sentences = "\n".join(
        f"- {text(line, most=MAX_SENTENCE)}"
        for line in (*explanation["text"], f"{STABILITY_RULE}.")
    )
    heads, rows = reward_rows(explanation)
    parts = table([(head, i > 0) for i, head in enumerate(heads)], _cells(rows)) if rows else ""
    return details("Reward by parts", sentences, parts)


def _reproduction(result: Result) -> str:
    best = result.best
    parts = [
        block("\n".join(reproduction_commands(result)), "sh"),
        f"Seed {result.record.study.seed}; written by autotune {__version__}.",
        *(
            ("The best config:", block(json.dumps(best.config.to_dict()), "json"))
            if best is not None
            else ()
        ),
        "The study as submitted (JSON is valid YAML):",
        block(spec_text(result, most=MAX_SPEC), "json"),
    ]
    return details("How to reproduce the study", *parts)


def _cells(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in rows]


def _link(number: int, page: str) -> str:
    """Return a trial's number, linked to its page."""
    return f"[{number}]({page}/trials/{number})" if page else str(number)
