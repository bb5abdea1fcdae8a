"""One study as GitHub-flavored Markdown, for a pull request: the answer first, then parts that
open with a click, figures as tables with bars.

It is at most `MOST_CHARACTERS` long, so that it can be a comment: of long tables the first rows are
shown, and figures for which no room is left are named. All text from studies (names, messages) is
escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from autotune import __version__
from autotune.ports import StudyRecord
from autotune.report.figures import figures_of
from autotune.report.figures.figure_markdown import figure_markdown
from autotune.report.findings import why
from autotune.report.markdown_text import bar, block, code, details, table, text
from autotune.report.notes import notes_of
from autotune.report.reward_tables import reward_rows
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
from autotune.results.rankings import explained
from autotune.results.result import Result
from autotune.results.target import target_of
from autotune.reward import STABILITY_RULE, tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label

MOST_CHARACTERS = 65_536
"""of a comment or a description of GitHub"""
MOST_TRIALS, MOST_FAILURES, MOST_CONFIGS = 24, 8, 12
"""rows of the tables"""
MOST_SPEC = 6_000
"""characters of the spec that are shown"""
MOST_SENTENCE = 400
"""characters of a line of text"""
ANSWER_HEADS = (
    *(("", False), ("trial", True), ("config", False), ("tokens/s", True), ("", False)),
    *((MEDIAN_STEP, True), ("peak memory", True), ("MFU", True)),
)
"""heads of the first table, and whether the column is of numbers"""
LEFT_OUT = ("spread", "reward")
"""columns of a trial that are not shown"""


def markdown_report(record: StudyRecord, trials: Sequence[Trial], *, service: str = "") -> str:
    """The report of a study, running or finished. `service`: address of the service whose pages of
    the study are linked; empty for no links."""
    found = result_from(record, trials)
    page = f"{service.rstrip('/')}/studies/{record.id}" if service else ""
    first = [
        _head(found, page),
        _answer(found, page),
        _target(found),
        _trials(found, page),
        _failures(found, page),
    ]
    last = [_rewards(found), _again(found)]
    room = MOST_CHARACTERS - sum(len(part) + 2 for part in (*first, *last))
    return (
        "\n\n".join(filter(None, [*first, *_figures(figures_of(found), record.id, room), *last]))
        + "\n"
    )


def _head(found: Result, page: str) -> str:
    record = found.record
    gain = (
        ""
        if found.speedup is None and found.too_noisy is None
        else f": {speedup_word(found, over=' over the baseline')}"
    )
    study = f"[study {record.id}]({page})" if page else f"study {code(record.id)}"
    lines = [f"### {text(record.study.name)}{gain}", text(setting_line(found), most=MOST_SENTENCE)]
    message = f": {text(record.message, most=MOST_SENTENCE)}" if record.message else ""
    return "\n\n".join([*lines, f"{study}, {when_line(found)}{message}"])


def _answer(found: Result, page: str) -> str:
    """Winner, baseline and those that were re-measured; then why it won."""
    named = [("**best**", found.best), ("baseline", found.baseline)]
    known = {trial.number for _, trial in named if trial is not None}
    named += [("", trial) for trial in found.confirmed[:MOST_CONFIGS] if trial.number not in known]
    measured = [(word, trial) for word, trial in named if trial is not None and trial.measurement]
    if (
        found.best is not None
        and found.baseline is not None
        and found.best.number == found.baseline.number
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
        f"- {text(line, most=MOST_SENTENCE)}"
        for line in (*why(found), *found.notes, counts_line(found))
    )
    winner = f"Best config: {code(str(found.best.config))}" if found.best is not None else ""
    return "\n\n".join(filter(None, [table(ANSWER_HEADS, rows) if rows else "", winner, sentences]))


def _target(found: Result) -> str:
    target = target_of(found.record)
    if target is None:
        return ""
    said = "\n".join(f"- {text(line, most=MOST_SENTENCE)}" for line in target_sentences(target))
    rows = _cells(target_rows(target)[:MOST_CONFIGS])
    heads = [(head, i not in TEXT_COLUMNS) for i, head in enumerate(HEADS)]
    return f"#### Target {text(target['cluster'])}\n\n{said}\n\n{table(heads, rows)}"


def _trials(found: Result, page: str) -> str:
    """The best trial, then the fastest ones, then those without a speed. Finals, whose figures
    their configs have, are counted only."""
    searched = [trial for trial in found.shown if trial.purpose is not TrialPurpose.FINAL]
    if not searched:
        return ""
    notes = notes_of(searched)
    shown = [i for i, (name, _) in enumerate(TRIAL_HEADS) if name not in LEFT_OUT]
    best = found.best.number if found.best is not None else None
    ranked = sorted(
        searched,
        key=lambda t: (
            t.number != best,
            not t.is_measured,
            -tokens_per_s(t) if t.is_measured else t.number,
        ),
    )
    rows = []
    for trial in ranked[:MOST_TRIALS]:
        _, label, *words = (trial_row(trial, notes.cells[trial.number])[i] for i in shown)
        rows.append([_link(trial.number, page), code(label), *map(text, words)])
    count, cut = len(ranked), len(ranked) - len(rows)
    finals = len(found.shown) - count
    lines = [
        speeds_line(found.shown, found.unmeasured_baseline),
        *notes.shared[:MOST_FAILURES],
        *([f"{cut:,} more runs are not shown"] if cut else []),
        *(
            [f"{finals:,} more runs re-measured the top configs for the figures above"]
            if finals
            else []
        ),
    ]
    said = "\n".join(f"- {text(line, most=MOST_SENTENCE)}" for line in lines)
    return details(
        f"Runs before the finals ({count:,})", table([TRIAL_HEADS[i] for i in shown], rows), said
    )


def _failures(found: Result, page: str) -> str:
    """The last failures."""
    failed = found.failed
    if not failed:
        return ""
    rows = []
    for trial in failed[-MOST_FAILURES:]:
        _, label, kind, where, message = failure_row(trial)
        exception = trial.failure.exception if trial.failure else ""
        said = ": ".join(filter(None, [message, exception.splitlines()[0] if exception else ""]))
        rows.append(
            [
                _link(trial.number, page),
                code(label),
                text(kind),
                text(where),
                text(said, most=MOST_SENTENCE),
            ]
        )
    cut = len(failed) - len(rows)
    return details(
        f"What failed ({len(failed):,})",
        table(FAILURE_HEADS, rows),
        f"{cut:,} earlier failures are not shown." if cut else "",
    )


def _figures(figures: Sequence[Figure], study: str, room: int) -> list[str]:
    """The figures that there is room for, in their order, and the names of the others. Of figures
    with the same columns only the first one's table is new."""
    tables = {figure.table.columns: figure for figure in reversed(figures)}
    parts, without_room = ["#### Figures"], []
    room -= MOST_SENTENCE
    for figure in (figure for figure in figures if tables[figure.table.columns] is figure):
        part = figure_markdown(figure)
        if len(part) + 2 <= room:
            room -= len(part) + 2
            parts.append(part)
        else:
            without_room.append(figure.title)
    left_out = f" Omitted to save space: {', '.join(without_room)}." if without_room else ""
    said = f"All figures with their data: autotune report {study} -o report.html.{left_out}"
    return [*parts, text(said, most=MOST_SENTENCE // 2)] if tables else []


def _rewards(found: Result) -> str:
    if found.best is None:
        return ""
    explanation = explained(found)
    said = "\n".join(
        f"- {text(line, most=MOST_SENTENCE)}"
        for line in (*explanation["text"], f"{STABILITY_RULE}.")
    )
    heads, rows = reward_rows(explanation)
    parts = table([(head, i > 0) for i, head in enumerate(heads)], _cells(rows)) if rows else ""
    return details("Reward by parts", said, parts)


def _again(found: Result) -> str:
    best = found.best
    parts = [
        block("\n".join(commands_again(found)), "sh"),
        f"Seed {found.record.study.seed}; written by autotune {__version__}.",
        *(
            ("The best config:", block(json.dumps(best.config.to_dict()), "json"))
            if best is not None
            else ()
        ),
        "The study as submitted (JSON is valid YAML):",
        block(spec_text(found, most=MOST_SPEC), "json"),
    ]
    return details("How to reproduce the study", *parts)


def _cells(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[text(cell) for cell in row] for row in rows]


def _link(number: int, page: str) -> str:
    """A trial's number, linked to its page."""
    return f"[{number}]({page}/trials/{number})" if page else str(number)
