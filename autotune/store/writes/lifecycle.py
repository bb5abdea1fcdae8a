"""The requested state of a study (`wanted`), its status, and its deletion. Request and status are
two columns with different writers, so that neither overwrites the other.

Users may change `wanted` until the study has ended. `status` is changed under the lease of the
study's controller, or by any process if the study is not leased. Each change is a compare-and-set.
A terminal status never changes, and a study with one has no open trials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, delete, select, tuple_, update

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import EventKind, Lease, StudyFields, status_kind
from autotune.spec import StudyStatus, Wanted
from autotune.store.connection.database import Database, now_us
from autotune.store.rows import clean, json_text
from autotune.store.tables import (
    attempts,
    events,
    notes,
    records,
    specs,
    studies,
    submissions,
    tags,
    trials,
)
from autotune.store.writes import locking
from autotune.store.writes.best_trials import update_records, update_standings
from autotune.store.writes.history import NewEvent, append
from autotune.store.writes.trials import cancel_open

FIELDS = tuple(StudyFields.__annotations__)
"""fields that can be written together with the status"""


def want(connection: Connection, study_id: str, wanted: Wanted, message: str) -> None:
    """Store a request of users. A repeated request adds no event to the history. Raises
    `ConflictError` if the study has ended, or the last request cannot be undone."""
    study = _locked(connection, study_id)
    if study.status in locking.TERMINAL:
        raise ConflictError(
            f"study {study_id} has ended as {study.status.lower()}", remedy="submit a new study"
        )
    before = Wanted(study.wanted)
    if not before.may_become(wanted):
        raise ConflictError(
            f"{before} was requested for study {study_id} and cannot be undone, so {wanted} is not possible"
        )
    if before is wanted:
        return
    now, text = now_us(), clean(message)
    values = {"wanted": str(wanted), "wanted_us": now, "message": text, "updated_us": now}
    connection.execute(update(studies).where(studies.c.key == study.key).values(**values))
    append(
        connection,
        study.key,
        [(EventKind.WANTED, {"wanted": str(wanted), "from": str(before), "message": message})],
    )


def set_status(
    database: Database,
    connection: Connection,
    study_id: str,
    status: StudyStatus,
    *,
    expect: Sequence[StudyStatus],
    message: str | None,
    lease: Lease | None,
    wanted: Wanted | None,
    fields: Mapping[str, Any],
) -> None:
    """Set status, message (None: unchanged) and fields. Only a changed status or message adds an
    event to the history. Raises `ConflictError` if the study's status is not one of `expect`, its
    request is not `wanted`, or it is leased and `lease` is None."""
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise TypeError(
            f"set_status has no field called {unknown[0]!r}; fields: {', '.join(FIELDS)}"
        )
    if lease is not None:
        if lease.study != study_id:
            raise ConflictError(
                f"a lease allows writes to its own study only, but the lease of study {lease.study} was used for study {study_id}"
            )
        study = locking.hold(connection, lease)
    else:
        study = _locked(connection, study_id)
        if study.lease_owner and study.lease_expires_us > database.server_now_us(connection):
            raise ConflictError(
                f"only the controller of a running study may change its status, and {study.lease_owner} runs study {study_id}",
                remedy="request pause, resume, stop or cancel instead",
            )
    if study.status in locking.TERMINAL:
        raise ConflictError(
            f"a terminal status never changes, and study {study_id} is {study.status.lower()}",
            remedy="submit a new study",
        )
    if study.status not in [str(s) for s in expect]:
        names = ", ".join(str(s) for s in expect)
        raise ConflictError(
            f"study {study_id} must be {names} to become {status.lower()}, but is {study.status.lower()}"
        )
    if wanted is not None and study.wanted != wanted:
        raise ConflictError(
            f"study {study_id} becomes {status.lower()} only if {wanted!r} is requested, but {study.wanted!r} is requested"
        )
    now, message = now_us(), study.message if message is None else message
    columns: dict[str, Any] = {name: value for name, value in fields.items() if name != "result"}
    columns |= {"status": str(status), "message": clean(message), "updated_us": now}
    if status is StudyStatus.RUNNING and study.started_us is None:
        columns["started_us"] = now
    new_events: list[NewEvent] = []
    if status.is_terminal:
        columns["ended_us"] = now
        new_events += cancel_open(connection, study, f"the study is {status.lower()}")
    connection.execute(update(studies).where(studies.c.key == study.key).values(**columns))
    if "result" in fields:
        _write_result(connection, study.key, json_text(fields["result"]))
    if str(status) != study.status or clean(message) != study.message:
        new_events.append((status_kind(status), {"from": study.status, "message": message}))
    if new_events:
        append(connection, study.key, new_events)


def _write_result(connection: Connection, study: int, result: str) -> None:
    """Replace the result of the study with this key. Controllers do so at each decision, so
    standings are updated only if the finals changed."""
    of_study = specs.c.study == study
    before = connection.scalar(select(specs.c.result).where(of_study))
    connection.execute(update(specs).where(of_study).values(result=result))
    if json.loads(before or "{}").get("finals") != json.loads(result).get("finals"):
        update_standings(connection, study, json.loads(result))


def _locked(connection: Connection, study_id: str) -> Row[Any]:
    """Return the study's row, locked until the transaction ends. Raises `NotFoundError`."""
    row = connection.execute(
        select(studies).where(studies.c.id == study_id).with_for_update()
    ).first()
    if row is None:
        raise NotFoundError(
            f"there is no study {study_id!r}", remedy="`autotune list` shows the studies"
        )
    return row


def delete_study(connection: Connection, study_id: str, learners: Sequence[str]) -> None:
    """Delete the study with exactly this id, which must have ended. `learners`: ids of studies that
    learned from it; their histories get an event."""
    study = locking.find(connection, study_id)
    if study.status not in locking.TERMINAL:
        raise ConflictError(
            f"only a study that has ended can be deleted, but study {study_id} is {study.status.lower()}",
            remedy="cancel the study first",
        )
    measured = select(trials.c.workload, trials.c.config_key).where(
        trials.c.study == study.key, trials.c.throughput.is_not(None)
    )
    configs = connection.execute(
        measured.distinct().order_by(trials.c.workload, trials.c.config_key)
    ).all()
    connection.execute(
        delete(records).where(tuple_(records.c.workload, records.c.config_key).in_(measured))
    )
    for table in (tags, notes, submissions, events, attempts, trials, specs):
        connection.execute(delete(table).where(table.c.study == study.key))
    connection.execute(delete(studies).where(studies.c.key == study.key))
    for learner in learners:
        event = (
            EventKind.TEACHER_DELETED,
            {
                "study": study_id,
                "message": f"study {study_id}, from which this one learned, was deleted",
            },
        )
        append(connection, locking.find(connection, learner).key, [event])
    # records last, in the order that controllers lock study and records, to avoid deadlocks
    for workload, of_workload in groupby(configs, key=lambda row: row.workload):
        update_records(connection, workload, [row.config_key for row in of_workload])
