"""Deletes a study that has ended, unless an unfinished study learned from it.

A searcher starts from the trials of earlier studies on the same model, cluster or trainer
(`autotune.study.assembly.teachers_of`). Continuing an interrupted study replays these trials to a
new searcher, so the studies it learned from must be kept until it has ended. Deleting a study is
noted in the histories of the ended studies that may have learned from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.errors import ConflictError
from autotune.ports import StudyReader, StudyRecord, StudyStore
from autotune.study.assembly import studies_alike, teachers_of

MOST_LEARNERS = 500
"""maximum number of studies each per model, cluster and trainer that are checked for having learned
from the deleted one"""
NAMED = 3
"""maximum number of studies named in a message"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What deleting a study removes, and which studies learned from it."""

    record: StudyRecord
    """the study"""
    trials: int
    """number of its trials"""
    measured: int
    """number of its measured configs, which no longer count in answers across studies"""
    learners: tuple[StudyRecord, ...]
    """later studies that have ended and may have learned from it, newest first"""
    held_by: tuple[StudyRecord, ...]
    """unfinished studies that learned from it, because of which it cannot be deleted"""

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
    """What deleting the study would remove. Raises `ConflictError` if it has not ended."""
    record = store.study(study_id)
    if not record.status.is_terminal:
        raise ConflictError(
            f"only a study that has ended can be deleted, but study {record.id} is {record.status.lower()}",
            remedy=f"cancel the study first: `autotune cancel {record.id}`",
        )
    trials = store.trials(record.id)
    learners = _possible_learners(store, record)
    running = [r for r in learners if not r.status.is_terminal and r.started_at is not None]
    held_by = [
        r
        for r in running
        if record.id in {teacher.id for teacher in teachers_of(r.study, store, before=r.created_at)}
    ]
    return Deletion(
        record=record,
        trials=len(trials),
        measured=len({trial.config for trial in trials if trial.is_measured}),
        learners=tuple(r for r in learners if r.status.is_terminal),
        held_by=tuple(held_by),
    )


def delete_study(store: StudyStore, study_id: str) -> Deletion:
    """Delete the study and return what was removed. Raises `ConflictError` if it has not ended, or an
    unfinished study learned from it."""
    deletion = deletion_of(store, study_id)
    if deletion.held_by:
        names = ", ".join(
            f"{learner.study.name} ({learner.id})" for learner in deletion.held_by[:NAMED]
        )
        more = len(deletion.held_by) - NAMED
        raise ConflictError(
            f"a study cannot be deleted while studies that learned from it are unfinished, and {names}{f' and {more} others' if more > 0 else ''} learned from "
            f"study {deletion.record.id}",
            remedy="wait until they have ended, or cancel them",
        )
    store.delete(deletion.record.id, learners=[learner.id for learner in deletion.learners])
    return deletion


def _possible_learners(store: StudyReader, record: StudyRecord) -> list[StudyRecord]:
    """Studies submitted after this one ended whose workloads are similar enough to learn from it,
    newest first."""
    from autotune.search import transfer_weight

    workload, ended = record.study.workload, record.ended_at
    learners = [
        other
        for other in studies_alike(record.study, store, limit=MOST_LEARNERS)
        if ended is not None
        and other.created_at > ended
        and transfer_weight(other.study.workload, workload)
    ]
    return sorted(learners, key=lambda other: other.created_at, reverse=True)
