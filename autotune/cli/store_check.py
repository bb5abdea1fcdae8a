"""What `autotune store check` says: a table of the studies, what was not checked, and the same as one JSON document."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from autotune.cli.output import bare_table, consoles, note

if TYPE_CHECKING:
    from autotune.store.examination import Examination, StudyExamined

MOST_SHOWN = 20
"""sound studies in the table, the newest; those with a fault are all shown"""
TELL_S = 5.0
"""seconds between two notes of how far a check is"""


class Progress:
    """Says on stderr how far a long check is."""

    def __init__(self) -> None:
        self._began_s = self._told_s = time.monotonic()

    def __call__(self, done: int, count: int) -> None:
        """`done` of `count` studies are checked."""
        now_s = time.monotonic()
        if done < count and now_s - self._told_s >= TELL_S:
            self._told_s = now_s
            left_s = (now_s - self._began_s) / done * (count - done)
            note(f"{done:,} of {count:,} studies are checked; about {left_s:.0f} s to go")


def document(found: Examination, *, replays: bool) -> dict[str, Any]:
    """Plain values."""
    return {
        "ok": not found.faults,
        "findings": list(found.faults),
        "replay": replays,
        "decisions": sum(study.replayed.decisions for study in found.studies if study.replayed),
        "followed": sum(study.replayed.followed for study in found.studies if study.replayed),
        "not_checked": _not_checked(found, replays=replays),
        "studies": [_study(study) for study in found.studies],
    }


def show(found: Examination, *, replays: bool) -> None:
    """The table on stdout, what was not checked and the faults on stderr."""
    table = bare_table()
    for heading in ("study", "events", "trials", "attempts", "decisions", "follow", "faults"):
        table.add_column(heading, justify="left" if heading == "study" else "right")
    faulty = [study for study in found.studies if study.faults]
    sound = [study for study in found.studies if not study.faults]
    for study in [*sound[-MOST_SHOWN:], *faulty]:
        counts = [f"{study.rows.get(name, 0):,}" for name in ("events", "trials", "attempts")]
        replayed = study.replayed
        counts += [f"{replayed.decisions:,}", f"{replayed.followed:,}"] if replayed else ["-", "-"]
        table.add_row(study.id, *counts, str(len(study.faults)))
    if found.studies:
        consoles()[0].print(table)
    if (more := len(sound) - MOST_SHOWN) > 0:
        note(f"{more:,} older studies without a fault are not shown; --json has them")
    for reason, count in _not_checked(found, replays=replays).items():
        note(f"not checked: {reason}" + (f" ({count:,} studies)" if count > 1 else ""))


def _not_checked(found: Examination, *, replays: bool) -> dict[str, int]:
    """What was not checked and why, with the number of studies."""
    reasons = Counter(reason for study in found.studies if study.replayed for reason in study.replayed.not_checked)
    if not replays and found.studies:
        reasons["whether the decisions follow: without --no-replay they are replayed"] = len(found.studies)
    if filled := sum(bool(study.filled) for study in found.studies):
        reasons["changes before the store was upgraded, of rows that have their checksum from then"] = filled
    return dict(reasons.most_common())


def _study(study: StudyExamined) -> dict[str, Any]:
    return {
        "id": study.id,
        "rows": dict(study.rows),
        "filled": study.filled,
        "faults": list(study.faults),
        "replayed": study.replayed.to_dict() if study.replayed else None,
    }
