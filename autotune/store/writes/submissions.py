"""Submissions of studies. A repeated request with the same idempotency key stores the study once.

Idempotency keys are separate for each owner: the same key of another owner is another submission.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from autotune.errors import ConflictError
from autotune.ports import EventKind
from autotune.spec import Study, StudyStatus, Wanted, Workload
from autotune.spec.plain import canonical, fingerprint, identity
from autotune.spec.study import is_same_study
from autotune.store.connection.database import lock, now_us
from autotune.store.rows import clean, json_text
from autotune.store.tables import specs, studies, submissions, workloads
from autotune.store.writes.history import append
from autotune.store.writes.locking import TERMINAL

_LETTERS = "abcdefghjkmnpqrstvwxyz"
_CHARACTERS = _LETTERS + "23456789"


def submit(
    connection: Connection,
    study: Study,
    spec: Mapping[str, Any],
    idempotency_key: str | None,
    owner: str,
) -> str:
    """Store the study as QUEUED, and return its id; for a known key, return the id of its study.
    Raises `ConflictError` if the key was used with another spec."""
    owner, values = clean(owner), study.to_dict()
    digest = fingerprint([values, json_text(spec)])
    if idempotency_key is not None:
        lock(connection, fingerprint([owner, idempotency_key]))
        row = connection.execute(
            select(
                submissions.c.fingerprint,
                studies.c.id,
                specs.c["values"].label("values_text"),
                specs.c.spec,
            )
            .join(studies, studies.c.key == submissions.c.study)
            .join(specs, specs.c.study == submissions.c.study)
            .where(
                submissions.c.owner == owner,
                submissions.c.idempotency_key == clean(idempotency_key),
            )
        ).first()
        if row is not None:
            # a release with more fields computes other fingerprints, so study and spec are compared;
            # defaults of the budget may have changed
            stored = Study.from_dict(json.loads(row.values_text))
            stored = replace(stored, budget=study.budget) if spec else stored
            if row.fingerprint != digest and (stored, row.spec) != (study, json_text(spec)):
                raise ConflictError(
                    f"an idempotency key belongs to one spec, but study {row.id} used this key with a different spec",
                    remedy="use a new key for a new spec",
                    field="idempotency_key",
                )
            return str(row.id)
    now = now_us()
    key, study_id = _insert_study(connection, study, owner, now)
    connection.execute(
        insert(specs).values(study=key, values=canonical(values), spec=json_text(spec), result="{}")
    )
    if idempotency_key is not None:
        connection.execute(
            insert(submissions).values(
                owner=owner, idempotency_key=clean(idempotency_key), fingerprint=digest, study=key
            )
        )
    append(connection, key, [(EventKind.SUBMITTED, {"name": study.name, "owner": owner})])
    return study_id


def find_unfinished(connection: Connection, study: Study, spec: Mapping[str, Any]) -> str | None:
    """Return the id of the newest study with the same name and spec that has not ended; None if
    there is none. Blocks submissions of this name until the transaction ends."""
    name = clean(study.name)
    lock(connection, fingerprint(["studies of one name", name]))
    rows = connection.execute(
        select(studies.c.id, specs.c["values"].label("values_text"), specs.c.spec)
        .join(specs, specs.c.study == studies.c.key)
        .where(
            studies.c.name == name,
            studies.c.status.not_in(TERMINAL),
            studies.c.wanted != str(Wanted.CANCEL),
        )
        .order_by(studies.c.created_us.desc(), studies.c.key.desc())
    )
    for row in rows:
        if is_same_study(
            Study.from_dict(json.loads(row.values_text)), json.loads(row.spec), study, spec
        ):
            return str(row.id)
    return None


def _insert_study(connection: Connection, study: Study, owner: str, now: int) -> tuple[int, str]:
    """Insert the study's row, and return its (key, id)."""
    workload = workload_key(connection, study.workload)
    study_id = new_id()
    key = connection.execute(
        insert(studies)
        .values(
            id=study_id,
            name=clean(study.name),
            owner=owner,
            workload=workload,
            runner=clean(study.runner),
            status=str(StudyStatus.QUEUED),
            message="",
            created_us=now,
            updated_us=now,
            elapsed_s=0.0,
            lease_owner="",
            lease_expires_us=0,
            fence=0,
            num_trials=0,
            num_events=0,
        )
        .returning(studies.c.key)
    ).scalar_one()
    return key, study_id


def workload_key(connection: Connection, workload: Workload) -> int:
    """Return the key of the workload's row, which is inserted if it is new."""
    values = workload.to_dict()
    digest = identity(values)
    query = select(workloads.c.key).where(workloads.c.fingerprint == digest)
    key = connection.execute(query).scalar()
    if key is None:
        connection.execute(
            insert_if_new(connection, workloads).values(
                fingerprint=digest,
                model=clean(workload.model.name),
                cluster=clean(workload.cluster.name),
                gpu=clean(workload.cluster.gpu.name),
                num_gpus=workload.cluster.num_gpus,
                trainer=clean(workload.trainer),
                seq_len=workload.seq_len,
                workload=canonical(values),
            )
        )
        key = connection.execute(query).scalar_one()
    return int(key)


def insert_if_new(connection: Connection, table: Table) -> Any:
    """Return an INSERT that does nothing if a row with the same key exists."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


def new_id() -> str:
    """Return a random id of ten letters and digits, without those that look alike; the first is a
    letter. There are 4e14 ids. They are valid in paths, host names and labels."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_CHARACTERS) for _ in range(9))
