"""The table of a study's trials, which query parameters sort, filter and split into pages, so that
a link shows the same view.

    sort     column, prefixed with `-` for descending order: number, config, status, predicted, measured, step, memory, runs, spent
    status   one status
    where    knobs with their values (`tp=2 precision=bf16`), all of which must match; other words are searched in the config's label
    runs     `each`: one row per run; otherwise one row per config, with the figures of all its runs
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
"""trials per page"""
MAX_NOTE = 70
"""longest note, characters; the trial's own page has the whole note"""
MAX_WORDS = 20
"""maximum number of words in a filter"""
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
"""(heading, whether the column has numbers, value) by the name in `sort`"""
PHONE_COLUMNS = ("number", "config", "status", "measured")
"""columns that a phone shows"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialQuery:
    """The table's query parameters."""

    sort: str = "number"
    descending: bool = False
    status: str = ""
    where: str = ""
    each_run: bool = False
    page: int = 1

    @classmethod
    def of(cls, values: Mapping[str, str]) -> TrialQuery:
        """Return the query with these parameters. Raises `SpecError` for an unknown column or
        status."""
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
        """Return the URL query with these parameters and the changes, without default values."""
        sort = changes.get("sort", ("-" if self.descending else "") + self.sort)
        parameters = {
            "sort": sort if sort != "number" else "",
            "status": self.status,
            "where": self.where,
        }
        parameters["runs"] = "each" if changes.get("each_run", self.each_run) else ""
        page = changes.get("page", 1)
        return (
            "?"
            + urlencode(
                {k: v for k, v in {**parameters, "page": page if page > 1 else ""}.items() if v}
            )
            + "#trials"
        )


def trial_table(result: Result, query: TrialQuery) -> dict[str, Any]:
    """Return the values of the template `trial_table.html`. Raises `SpecError` for a filter by an
    unknown knob."""
    rows = (
        by_config(result.shown)
        if not query.each_run
        else [ConfigRuns(trial=t, runs=(t,)) for t in result.shown]
    )
    matching = _filtered(rows, query)
    _, _, key = COLUMNS[query.sort]
    with_value = [(value, row) for row in matching if (value := key(row)) is not None]
    with_value.sort(key=lambda pair: (pair[0], pair[1].trial.number), reverse=query.descending)
    order = [row for _, row in with_value] + [row for row in matching if key(row) is None]
    pages = max(1, -(-len(order) // PAGE))
    page = min(query.page, pages)
    best = result.best.number if result.best is not None else None
    return {
        "query": query,
        "heads": [_head(name, query) for name in COLUMNS],
        "rows": [_row(row, best) for row in order[PAGE * (page - 1) : PAGE * page]],
        "found": len(order),
        "all": len(rows),
        "trials": len(result.shown),
        "other_runs": query.address(each_run=not query.each_run),
        "first": PAGE * (page - 1) + 1,
        "statuses": sorted({str(t.status) for t in result.shown}),
        "page": page,
        "pages": pages,
        "before": query.address(page=page - 1) if page > 1 else "",
        "after": query.address(page=page + 1) if page < pages else "",
    }


def _head(name: str, query: TrialQuery) -> dict[str, Any]:
    heading, is_number, _ = COLUMNS[name]
    is_sorted = query.sort == name
    descending, sorting = is_number and name != "number", "none"
    if is_sorted:
        descending, sorting = (
            not query.descending,
            "descending" if query.descending else "ascending",
        )
    return {
        "name": heading,
        "is_number": is_number,
        "is_wide": name not in PHONE_COLUMNS,
        "sorting": sorting,
        "address": query.address(sort=("-" if descending else "") + name),
    }


def _row(row: ConfigRuns, best: int | None) -> dict[str, Any]:
    trial = row.trial
    values = {name: key(row) for name, (_, _, key) in COLUMNS.items()}
    note = note_of(trial)
    brief = note if len(note) <= MAX_NOTE else brief_note(trial, most=MAX_NOTE)
    purpose = "" if trial.purpose is TrialPurpose.SEARCH else str(trial.purpose)
    return {
        **values,
        "is_best": trial.number == best,
        "note": brief,
        "whole_note": note,
        "purpose": purpose,
    }


def _filtered(rows: Sequence[ConfigRuns], query: TrialQuery) -> list[ConfigRuns]:
    pairs, words = _parse_filter(query.where)
    own_knobs = {name for row in rows[:1] for name in row.trial.config.extra}
    for name in pairs:
        if name not in FIELDS and name not in own_knobs:
            raise SpecError(
                f"there is no knob {name!r}",
                remedy=nearest(name, [*FIELDS, *own_knobs])
                or f"the knobs are {', '.join([*FIELDS, *sorted(own_knobs)])}",
                field="where",
            )
    return [
        row
        for row in rows
        if (not query.status or row.trial.status == query.status)
        and all(str(row.trial.config.value(name)).lower() == value for name, value in pairs.items())
        and (not words or all(word in config_label(row.trial.config).lower() for word in words))
    ]


def _parse_filter(where: str) -> tuple[dict[str, str], list[str]]:
    """Return (values by knob, other words) from a filter."""
    parts = [part for part in re.split(r"[\s,]+", where.lower()) if part][:MAX_WORDS]
    pairs = dict(part.split("=", 1) for part in parts if "=" in part)
    return pairs, [part for part in parts if "=" not in part]
