"""Deleting a study that has ended: what goes with it, and which studies learned from it.

A search begins with the trials of earlier studies on the same model, cluster or trainer
(`autotune.study.assembly.teachers_of`). A study that was interrupted is continued by telling its
searcher all of that again, so the studies that it learned from must stay until it has ended. The
histories of those that have ended say afterwards that a part of what they learned from is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.errors import ConflictError
from autotune.ports import StudyReader, StudyRecord, StudyStore
from autotune.study.assembly import studies_alike, teachers_of

MOST_LEARNERS = 500
"""newer studies that are asked whether they learned from one"""
NAMED = 3
"""studies that a message names"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What deleting a study takes away."""

    record: StudyRecord
    """the study"""
    trials: int
    """trials that go with it"""
    measured: int
    """configs among them that were measured, which no longer count in answers across history"""
    learners: tuple[StudyRecord, ...]
    """later studies that have ended and may have learned from it, newest first"""
    held_by: tuple[StudyRecord, ...]
    """later studies that learned from it and have not ended; while there is one it cannot be
    deleted"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        named = {"learners": self.learners, "held_by": self.held_by}
        return {
            "study": self.record.id,
            "name": self.record.study.name,
            "trials": self.trials,
            "measured": self.measured,
            **{
                key: [{"id": r.id, "name": r.study.name} for r in records]
                for key, records in named.items()
            },
        }


def deletion_of(store: StudyReader, study_id: str) -> Deletion:
    """What deleting the study would take away. Raises `ConflictError` when it has not ended."""
    record = store.study(study_id)
    if not record.status.is_terminal:
        raise ConflictError(
            f"only a study that has ended can be deleted, but study {record.id} is {record.status.lower()}",
            remedy=f"cancel the study first: `autotune cancel {record.id}`",
        )
    trials = store.trials(record.id)
    later = _later_kin(store, record)
    open_ones = [kin for kin in later if not kin.status.is_terminal and kin.started_at is not None]
    held_by = [
        kin
        for kin in open_ones
        if record.id
        in {teacher.id for teacher in teachers_of(kin.study, store, before=kin.created_at)}
    ]
    return Deletion(
        record=record,
        trials=len(trials),
        measured=len({trial.config for trial in trials if trial.is_measured}),
        learners=tuple(kin for kin in later if kin.status.is_terminal),
        held_by=tuple(held_by),
    )


def delete_study(store: StudyStore, study_id: str) -> Deletion:
    """Deletes the study and returns what went. Raises `ConflictError` when it has not ended, or a
    study that has not ended learned from it."""
    found = deletion_of(store, study_id)
    if found.held_by:
        names = ", ".join(f"{kin.study.name} ({kin.id})" for kin in found.held_by[:NAMED])
        more = len(found.held_by) - NAMED
        raise ConflictError(
            f"a study cannot be deleted while studies that learned from it are unfinished, and {names}{f' and {more} others' if more > 0 else ''} learned from "
            f"study {found.record.id}",
            remedy="wait until they have ended, or cancel them",
        )
    store.delete(found.record.id, learners=[kin.id for kin in found.learners])
    return found


def _later_kin(store: StudyReader, record: StudyRecord) -> list[StudyRecord]:
    """Studies that were submitted after it ended, and whose workloads are near enough to learn from
    it, newest first."""
    from autotune.search import transfer_weight

    workload, ended = record.study.workload, record.ended_at
    found = [
        kin
        for kin in studies_alike(record.study, store, limit=MOST_LEARNERS)
        if ended is not None
        and kin.created_at > ended
        and transfer_weight(kin.study.workload, workload)
    ]
    return sorted(found, key=lambda kin: kin.created_at, reverse=True)
