"""Status changes of a study, each a compare-and-set. A terminal status never changes, and it leaves no trial open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import Lease, StudyFields
from autotune.spec import StudyStatus
from autotune.store import locking
from autotune.store.database import now_us
from autotune.store.history import append
from autotune.store.rows import clean, json_text
from autotune.store.tables import specs, studies
from autotune.store.trials import cancel_open

FIELDS = tuple(StudyFields.__annotations__)
"""Fields that can be written together with the status."""


def set_status(
    connection: Connection,
    study_id: str,
    status: StudyStatus,
    *,
    expect: Sequence[StudyStatus],
    message: str,
    lease: Lease | None,
    fields: Mapping[str, Any],
) -> None:
    """Sets status, message and fields. Adds a line to the history only when status or message change."""
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise TypeError(f"set_status has no field called {unknown[0]!r}; fields: {', '.join(FIELDS)}")
    if lease is not None:
        if lease.study != study_id:
            raise ConflictError(
                f"a lease allows writes to its own study only, but the lease of study {lease.study} was used for study {study_id}"
            )
        study = locking.hold(connection, lease)
    else:
        found = connection.execute(select(studies).where(studies.c.id == study_id).with_for_update()).first()
        if found is None:
            raise NotFoundError(f"no study has the id {study_id!r}", remedy="`autotune list` shows them")
        study = found
    if study.status in locking.TERMINAL:
        raise ConflictError(
            f"a terminal status never changes, and study {study_id} is {study.status}", remedy="submit a new study"
        )
    if study.status not in [str(s) for s in expect]:
        names = ", ".join(str(s) for s in expect)
        raise ConflictError(f"study {study_id} must be {names} to become {status}, but is {study.status}")
    now = now_us()
    columns: dict[str, Any] = {name: value for name, value in fields.items() if name != "result"}
    columns |= {"status": str(status), "message": clean(message), "updated_us": now}
    if status is StudyStatus.RUNNING and study.started_us is None:
        columns["started_us"] = now
    lines: list[tuple[str, Mapping[str, Any]]] = []
    if status.is_terminal:
        columns["ended_us"] = now
        lines += cancel_open(connection, study, f"the study is {status}")
    connection.execute(update(studies).where(studies.c.key == study.key).values(**columns))
    if "result" in fields:
        connection.execute(update(specs).where(specs.c.study == study.key).values(result=json_text(fields["result"])))
    if str(status) != study.status or clean(message) != study.message:
        lines.append((f"study.{status.lower()}", {"from": study.status, "message": message}))
    if lines:
        append(connection, study.key, lines)
