"""Notes of trials: how each failed or why it was asked, and what many of them share.

A table of trials shows a note in each row. A note that `SHARED_BY` or more rows share is written once, under the table, and the rows show only its
gist: what it says before its colon (`OUT_OF_MEMORY`, `cannot win`), or a number in brackets where it has none. Errors share a note only where their
cause is the same but for its figures, so that each cause is seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.spec import FailureKind, Trial, TrialStatus

SHARED_BY = 3
"""rows from which on a note is written under the table"""
MAX_GIST = 16
"""characters of a gist"""
CAUSES = (FailureKind.ERROR, FailureKind.INVALID)
"""kinds of failures that have many causes"""
MAX_REPEATED = 40
"""characters of a note that is short enough to be repeated where it has no gist"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes of a table of trials."""

    cells: Mapping[int, str]
    """what a trial's row shows, by trial number"""
    shared: tuple[str, ...]
    """lines under the table, the most frequent note first"""


def note_of(trial: Trial) -> str:
    """The most telling sentence about a trial: how it failed, or why it was asked. Of an error the exception comes first: a narrow column cuts the end."""
    if trial.failure is not None:
        failure = trial.failure
        if failure.kind in CAUSES and ": " in failure.exception:
            rank = "" if failure.rank is None else f" (rank {failure.rank})"
            return f"{failure.kind}: {failure.exception.splitlines()[0]}{rank}"
        return f"{trial.failure.kind}: {trial.failure.message}"
    return trial.reason


def gist_of(trial: Trial) -> str:
    """What the note of a trial that did not run to its end says before its colon, where that is short; else empty."""
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.PENDING):
        return ""
    head = note_of(trial).partition(":")[0]
    return head if len(head) <= MAX_GIST else ""


def notes_of(trials: Sequence[Trial]) -> Notes:
    """The notes of these trials; those that many share once."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_sharing(trial), []).append(trial)
    cells, shared, marks = {t.number: note_of(t) for t in trials}, [], 0
    taken: set[str] = set()
    for key, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = group[0]
        gist = gist_of(first)
        if len(group) < SHARED_BY or key == gist == note_of(first) or (not gist and len(key) <= MAX_REPEATED):
            continue
        if not gist or gist in taken:
            marks += 1
        mark = f"{gist} ({marks})" if gist in taken else gist or f"({marks})"
        taken.add(gist)
        cells |= dict.fromkeys((t.number for t in group), mark)
        details = [note_of(t).removeprefix(f"{gist}: ") for t in group]
        count = f"{len(group)} trials" if len(set(details)) == 1 else f"{len(group)} trials, such as {first.number}"
        shared.append(f"{mark} ({count}): {details[0]}" if gist else f"{mark} {count}: {details[0]}")
    return Notes(cells=cells, shared=tuple(shared))


def _sharing(trial: Trial) -> str:
    """What trials of one group have in common."""
    failure = trial.failure
    if failure is None or failure.kind not in CAUSES:
        return gist_of(trial) or note_of(trial)
    return f"{failure.kind}: {re.sub('[0-9]+', '#', failure.exception or failure.message)}"
