"""A new study, kept once however often its submitter had to ask.

An idempotency key belongs to its owner: the same key of another owner is another submission.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from autotune.errors import ConflictError
from autotune.spec import Study, StudyStatus, Workload
from autotune.spec.plain import canonical, fingerprint, study_from_dict, study_to_dict, workload_to_dict
from autotune.store.database import lock, now_us
from autotune.store.history import append
from autotune.store.rows import clean, json_text
from autotune.store.tables import specs, studies, submissions, workloads

_LETTERS = "abcdefghjkmnpqrstvwxyz"
_SIGNS = _LETTERS + "23456789"


def submit(
    connection: Connection, study: Study, spec: Mapping[str, Any], idempotency_key: str | None, owner: str
) -> str:
    """Keeps the study as QUEUED and returns its id; a known key returns the id that it made first."""
    owner, values = clean(owner), study_to_dict(study)
    mark = fingerprint([values, json_text(spec)])
    if idempotency_key is not None:
        lock(connection, fingerprint([owner, idempotency_key]))
        row = connection.execute(
            select(submissions.c.fingerprint, studies.c.id, specs.c["values"].label("values_text"), specs.c.spec)
            .join(studies, studies.c.key == submissions.c.study)
            .join(specs, specs.c.study == submissions.c.study)
            .where(submissions.c.owner == owner, submissions.c.idempotency_key == clean(idempotency_key))
        ).first()
        if row is not None:
            # A release that knows more fields writes other fingerprints: what was kept then decides.
            kept = (study_from_dict(json.loads(row.values_text)), row.spec)
            if row.fingerprint != mark and kept != (study, json_text(spec)):
                raise ConflictError(
                    f"the idempotency key was used for another spec, of study {row.id}",
                    remedy="use a new key for a new spec",
                    field="idempotency_key",
                )
            return str(row.id)
    now = now_us()
    key, study_id = _insert_study(connection, study, owner, now)
    connection.execute(insert(specs).values(study=key, values=canonical(values), spec=json_text(spec), result="{}"))
    if idempotency_key is not None:
        connection.execute(
            insert(submissions).values(owner=owner, idempotency_key=clean(idempotency_key), fingerprint=mark, study=key)
        )
    append(connection, key, [("study.submitted", {"name": study.name, "owner": owner})])
    return study_id


def _insert_study(connection: Connection, study: Study, owner: str, now: int) -> tuple[int, str]:
    workload = keep_workload(connection, study.workload)
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


def keep_workload(connection: Connection, workload: Workload) -> int:
    """The key of the workload, which is written if it is new."""
    values = workload_to_dict(workload)
    mark = fingerprint(values)
    known = select(workloads.c.key).where(workloads.c.fingerprint == mark)
    key = connection.execute(known).scalar()
    if key is None:
        connection.execute(
            insert_if_new(connection, workloads).values(
                fingerprint=mark,
                model=clean(workload.model.name),
                cluster=clean(workload.cluster.name),
                gpu=clean(workload.cluster.gpu.name),
                num_gpus=workload.cluster.num_gpus,
                trainer=clean(workload.trainer),
                seq_len=workload.seq_len,
                workload=canonical(values),
            )
        )
        key = connection.execute(known).scalar_one()
    return int(key)


def insert_if_new(connection: Connection, table: Table) -> Any:
    """An INSERT that leaves a row with the same key as it is."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


def new_id() -> str:
    """Ten letters and digits, the first a letter, none that is read for another: 6e13 ids, safe in paths, hosts and labels."""
    return secrets.choice(_LETTERS) + "".join(secrets.choice(_SIGNS) for _ in range(9))
