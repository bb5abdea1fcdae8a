"""Deleting a study: its rows go from all tables, and the configs that it measured are represented by other studies' trials, or by none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sqlalchemy import Connection, delete, select, tuple_

from autotune.errors import ConflictError
from autotune.ports import EventKind
from autotune.store import locking
from autotune.store.best_trials import keep_records
from autotune.store.history import append
from autotune.store.tables import attempts, events, notes, records, specs, studies, submissions, tags, trials


def delete_study(connection: Connection, study_id: str, learners: Sequence[str]) -> None:
    """Deletes the study with that exact id, which must have ended. `learners`: ids of studies whose history says that it is gone."""
    study = locking.find(connection, study_id)
    if study.status not in locking.TERMINAL:
        raise ConflictError(
            f"only a study that has ended can be deleted, but study {study_id} is {study.status}",
            remedy="cancel it first",
        )
    measured = select(trials.c.workload, trials.c.config_key).where(
        trials.c.study == study.key, trials.c.throughput.is_not(None)
    )
    configs = connection.execute(measured.distinct().order_by(trials.c.workload, trials.c.config_key)).all()
    connection.execute(delete(records).where(tuple_(records.c.workload, records.c.config_key).in_(measured)))
    for table in (tags, notes, submissions, events, attempts, trials, specs):
        connection.execute(delete(table).where(table.c.study == study.key))
    connection.execute(delete(studies).where(studies.c.key == study.key))
    for learner in learners:
        line = (
            EventKind.TEACHER_DELETED,
            {"study": study_id, "message": f"study {study_id}, from which this one learnt, was deleted"},
        )
        append(connection, locking.find(connection, learner).key, [line])
    # after the learners: a controller too writes to its study before it waits for the records
    for workload, of_workload in groupby(configs, key=lambda row: row.workload):
        keep_records(connection, workload, [row.config_key for row in of_workload])
