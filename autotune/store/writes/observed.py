"""Observed runs, stored when they end and never changed. Values that queries use have columns; the
others are in the document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Unpack

from sqlalchemy import Connection, Row, insert, select

from autotune.ports import ObservedFilter
from autotune.spec import ObservedRun
from autotune.spec.plain import finite
from autotune.store.connection.database import now_us, to_us
from autotune.store.packing import pack_document, unpack_document
from autotune.store.rows import clean
from autotune.store.tables import observed, workloads
from autotune.store.writes.submissions import new_id, workload_key

_WORKLOAD_FILTERS = ("model", "cluster", "gpu", "trainer")


def keep(connection: Connection, run: ObservedRun) -> str:
    """Store the run, and return its id."""
    run_id = new_id()
    document = {k: v for k, v in run.to_dict().items() if k not in ("kind", "id", "workload")}
    trial = run.as_trial()
    speed = trial.measurement.tokens_per_s if trial and trial.measurement else None
    connection.execute(
        insert(observed).values(
            id=run_id,
            workload=workload_key(connection, run.workload) if run.workload else None,
            program=clean(run.program),
            outcome=str(run.outcome),
            config=str(run.config or ""),
            throughput=finite(speed / run.workload.cluster.num_gpus)
            if speed and run.workload
            else None,
            ended_us=to_us(run.ended_at),
            kept_us=now_us(),
            document=pack_document(json.loads(clean(json.dumps(document)))),
        )
    )
    return run_id


def read(
    connection: Connection, *, limit: int, offset: int, **filters: Unpack[ObservedFilter]
) -> Sequence[ObservedRun]:
    """Return the runs that match all filters, the last stored one first."""
    query = select(observed, workloads.c.workload.label("of_workload")).outerjoin(
        workloads, workloads.c.key == observed.c.workload
    )
    given: dict[str, Any] = {name: value for name, value in filters.items() if value}
    if given.pop("measured", False):
        query = query.where(observed.c.throughput.is_not(None))
    if (prefix := given.pop("id", "")) != "":
        query = query.where(observed.c.id.startswith(prefix, autoescape=True))
    for name, value in given.items():
        query = query.where((workloads if name in _WORKLOAD_FILTERS else observed).c[name] == value)
    rows = connection.execute(
        query.order_by(observed.c.key.desc()).limit(limit).offset(offset)
    ).all()
    return [_run(row) for row in rows]


def _run(row: Row[Any]) -> ObservedRun:
    """Return the run of a row."""
    workload = json.loads(row.of_workload) if row.of_workload is not None else None
    return ObservedRun.from_dict(
        {**unpack_document(row.document), "id": row.id, "workload": workload}
    )
