"""What `autotune store check` says: a table of the studies, what was not checked, and the same as one JSON document."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from autotune.cli.output import note, print_table
from autotune.cli.time_span import time_span_s
from autotune.errors import SpecError
from autotune.spec.duration import format_duration

if TYPE_CHECKING:
    from autotune.store import SqlStore
    from autotune.store.examination import Examination, Progress, StudyExamined

MOST_SHOWN = 20
"""sound studies in the table, the newest; those with a fault are all shown"""
NEWEST = 100
"""studies whose decisions are replayed unless an option says otherwise"""
TELL_S = 5.0
"""seconds between two notes of how far a check is"""


class Teller:
    """Says on stderr how far a long check is."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Called after each study."""
        if progress.done < progress.studies and time.monotonic() - self._told_s >= TELL_S:
            self._told_s = time.monotonic()
            replayed = f", {progress.replayed:,} of {progress.replays:,} replayed" if progress.replays else ""
            note(
                f"{progress.done:,} of {progress.studies:,} studies are checked{replayed}; about {format_duration(progress.left_s)} to go"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose decisions are replayed."""

    replay: bool = True
    """False: nobody's"""
    named: tuple[str, ...] = ()
    """ids, names or beginnings of ids of studies; empty: see the others"""
    since: str = ""
    """a time, such as 1d: of studies in which anything was written in that time"""
    everyone: bool = False
    """of all studies; otherwise of the newest `NEWEST`"""

    def __post_init__(self) -> None:
        given = [
            name
            for name, is_given in (
                ("--study", self.named),
                ("--since", self.since),
                ("--all", self.everyone),
                ("--no-replay", not self.replay),
            )
            if is_given
        ]
        if len(given) > 1:
            raise SpecError(
                f"one option says whose decisions are replayed, but here are {' and '.join(given)}",
                remedy="leave out all but one",
                field=given[-1],
            )

    def chosen(self, store: SqlStore) -> frozenset[str] | None:
        """Their ids; None: all. Raises `NotFoundError` and `SpecError`."""
        from autotune.store.examination import changed_studies

        if self.everyone or not self.replay:
            return None
        if self.named:
            return frozenset(store.study(name).id for name in self.named)
        if self.since:
            return changed_studies(
                store, since=datetime.now(UTC) - timedelta(seconds=time_span_s(self.since, "--since"))
            )
        return changed_studies(store, newest=NEWEST)

    def left_out(self) -> str:
        """Whose decisions are not replayed, and what would replay them, in words."""
        what = "whether the decisions follow"
        if not self.replay:
            return f"{what}: without --no-replay they are replayed"
        if self.named:
            return f"{what} of the studies that --study does not name"
        if self.since:
            return f"{what} of studies in which nothing was written for {self.since}"
        return (
            f"{what} of studies older than the newest {NEWEST}: --since 1d replays those that changed since, --all all"
        )


def document(found: Examination, asked: Asked) -> dict[str, Any]:
    """Plain values."""
    return {
        "ok": not found.faults,
        "findings": list(found.faults),
        "replay": asked.replay,
        "decisions": sum(study.replayed.decisions for study in found.studies if study.replayed),
        "followed": sum(study.replayed.followed for study in found.studies if study.replayed),
        "not_checked": _not_checked(found, asked),
        "studies": [_study(study) for study in found.studies],
    }


def show(found: Examination, asked: Asked) -> None:
    """The table on stdout, what was not checked and the faults on stderr."""
    faulty = [study for study in found.studies if study.faults]
    sound = [study for study in found.studies if not study.faults]
    rows = []
    for study in [*sound[-MOST_SHOWN:], *faulty]:
        counts = [f"{study.rows.get(name, 0):,}" for name in ("events", "trials", "attempts")]
        replayed = study.replayed
        counts += [f"{replayed.decisions:,}", f"{replayed.followed:,}"] if replayed else ["-", "-"]
        rows.append([study.id, *counts, str(len(study.faults))])
    if rows:
        heads = ("study", "events", "trials", "attempts", "decisions", "follow", "faults")
        print_table(heads, rows, numbers=heads[1:])
    if (more := len(sound) - MOST_SHOWN) > 0:
        note(f"{more:,} older studies without a fault are not shown; --json has them")
    for reason, count in _not_checked(found, asked).items():
        note(f"not checked: {reason}" + (f" ({count:,} studies)" if count > 1 else ""))


def _not_checked(found: Examination, asked: Asked) -> dict[str, int]:
    """What was not checked and why, with the number of studies."""
    reasons = Counter(reason for study in found.studies if study.replayed for reason in study.replayed.not_checked)
    if found.not_asked:
        reasons[asked.left_out()] = found.not_asked
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
