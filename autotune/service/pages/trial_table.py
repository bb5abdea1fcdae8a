"""The table of a study's trials: sorted, filtered and cut into pages by its address, so that a view
of it can be shared.

    sort     a column, `-` before it for the largest first: number, config, status, predicted, measured, step, memory, runs, spent
    status   one status
    where    knobs with their values (`tp=2 precision=bf16`), all of which must hold; other words are looked for in the config's short text
    runs     `each`: a row for every run; else one for each config, with the figure of all its runs
    page     from 1

Trials without a value in the sorted column come last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from autotune.errors import SpecError
from autotune.report.notes import brief_note, note_of
from autotune.report.terminal import MEDIAN_STEP, ConfigRuns, by_config
from autotune.results.result import Result
from autotune.spec import FIELDS, TrialPurpose, TrialStatus, config_label
from autotune.spec.checks import member_of, nearest, one_of

PAGE = 50
"""trials of a page"""
NOTE = 70
"""characters of a note; the trial's own page holds the whole"""
MOST_WORDS = 20
"""words of a filter"""
_Key = Callable[[ConfigRuns], Any]
COLUMNS: Mapping[str, tuple[str, bool, _Key]] = {
    "number": ("#", True, lambda row: row.trial.number),
    "config": ("Config", False, lambda row: config_label(row.trial.config)),
    "status": ("Status", False, lambda row: str(row.trial.status)),
    "measured": (
        "Measured",
        True,
        lambda row: row.trial.measured.tokens_per_s if row.trial.measured else None,
    ),
    "predicted": (
        "Predicted",
        True,
        lambda row: float(row.trial.estimate.tokens_per_s) if row.trial.estimate else None,
    ),
    "step": (
        MEDIAN_STEP.capitalize(),
        True,
        lambda row: row.trial.measured.step_time_s if row.trial.measured else None,
    ),
    "memory": ("Memory", True, lambda row: row.trial.peak_memory_bytes),
    "runs": ("Runs", True, lambda row: len(row.runs)),
    "spent": ("Spent", True, lambda row: row.spent_s or None),
}
"""(heading, whether it is a number, value) by the name in the address"""
NARROW = ("number", "config", "status", "measured")
"""those that a phone shows"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialQuery:
    """What an address asks of the table."""

    sort: str = "number"
    descending: bool = False
    status: str = ""
    where: str = ""
    each_run: bool = False
    page: int = 1

    @classmethod
    def of(cls, values: Mapping[str, str]) -> TrialQuery:
        """Of an address. Raises `SpecError` for a column or status that there is not."""
        sort = values.get("sort", "number")[:40] or "number"
        status, number = values.get("status", "")[:40], values.get("page", "1")
        is_number = number.isascii() and number.isdigit() and len(number) < 7
        return cls(
            sort=one_of("sort", sort.removeprefix("-"), list(COLUMNS)),
            descending=sort.startswith("-"),
            status=member_of("status", status, TrialStatus) if status else "",
            where=values.get("where", "")[:200],
            each_run=values.get("runs") == "each",
            page=max(1, int(number)) if is_number else 1,
        )

    def address(self, **changes: Any) -> str:
        """The query of the address that asks the same but for the changes; without what is asked
        anyway."""
        sort = changes.get("sort", ("-" if self.descending else "") + self.sort)
        asked = {
            "sort": sort if sort != "number" else "",
            "status": self.status,
            "where": self.where,
        }
        asked["runs"] = "each" if changes.get("each_run", self.each_run) else ""
        page = changes.get("page", 1)
        return (
            "?"
            + urlencode({k: v for k, v in {**asked, "page": page if page > 1 else ""}.items() if v})
            + "#trials"
        )


def trial_table(result: Result, query: TrialQuery) -> dict[str, Any]:
    """The values of the template `trial_table.html`. Raises `SpecError` for a filter by a knob that
    no config has."""
    rows = (
        by_config(result.shown)
        if not query.each_run
        else [ConfigRuns(trial=t, runs=(t,)) for t in result.shown]
    )
    found = _filtered(rows, query)
    _, _, key = COLUMNS[query.sort]
    known = [(value, row) for row in found if (value := key(row)) is not None]
    known.sort(key=lambda pair: (pair[0], pair[1].trial.number), reverse=query.descending)
    order = [row for _, row in known] + [row for row in found if key(row) is None]
    pages = max(1, -(-len(order) // PAGE))
    at = min(query.page, pages)
    best = result.best.number if result.best is not None else None
    return {
        "query": query,
        "heads": [_head(name, query) for name in COLUMNS],
        "rows": [_row(row, best) for row in order[PAGE * (at - 1) : PAGE * at]],
        "found": len(order),
        "all": len(rows),
        "trials": len(result.shown),
        "other_runs": query.address(each_run=not query.each_run),
        "first": PAGE * (at - 1) + 1,
        "statuses": sorted({str(t.status) for t in result.shown}),
        "page": at,
        "pages": pages,
        "before": query.address(page=at - 1) if at > 1 else "",
        "after": query.address(page=at + 1) if at < pages else "",
    }


def _head(name: str, query: TrialQuery) -> dict[str, Any]:
    heading, is_number, _ = COLUMNS[name]
    is_sorted = query.sort == name
    down, sorting = is_number and name != "number", "none"
    if is_sorted:
        down, sorting = not query.descending, "descending" if query.descending else "ascending"
    return {
        "name": heading,
        "is_number": is_number,
        "is_wide": name not in NARROW,
        "sorting": sorting,
        "address": query.address(sort=("-" if down else "") + name),
    }


def _row(row: ConfigRuns, best: int | None) -> dict[str, Any]:
    trial = row.trial
    values = {name: key(row) for name, (_, _, key) in COLUMNS.items()}
    note = note_of(trial)
    brief = note if len(note) <= NOTE else brief_note(trial, most=NOTE)
    purpose = "" if trial.purpose is TrialPurpose.SEARCH else str(trial.purpose)
    return {
        **values,
        "is_best": trial.number == best,
        "note": brief,
        "whole_note": note,
        "purpose": purpose,
    }


def _filtered(rows: Sequence[ConfigRuns], query: TrialQuery) -> list[ConfigRuns]:
    pairs, words = _asked(query.where)
    own = {name for row in rows[:1] for name in row.trial.config.extra}
    for name in pairs:
        if name not in FIELDS and name not in own:
            raise SpecError(
                f"there is no knob {name!r}",
                remedy=nearest(name, [*FIELDS, *own])
                or f"the knobs are {', '.join([*FIELDS, *sorted(own)])}",
                field="where",
            )
    return [
        row
        for row in rows
        if (not query.status or row.trial.status == query.status)
        and all(str(row.trial.config.value(name)).lower() == value for name, value in pairs.items())
        and (not words or all(word in config_label(row.trial.config).lower() for word in words))
    ]


def _asked(where: str) -> tuple[dict[str, str], list[str]]:
    """(values by knob, other words) of a filter."""
    parts = [part for part in re.split(r"[\s,]+", where.lower()) if part][:MOST_WORDS]
    pairs = dict(part.split("=", 1) for part in parts if "=" in part)
    return pairs, [part for part in parts if "=" not in part]
