"""Counts for dashboards, and the workloads that have measurements. Each number is read from an index."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from autotune.ports import KnownWorkload, Statistics
from autotune.spec import Workload
from autotune.store.tables import records, studies, trials, workloads


def statistics(connection: Connection, now: int) -> Statistics:
    """The present counts."""
    by_status = select(studies.c.status, func.count()).group_by(studies.c.status)
    by_ending = select(trials.c.status, trials.c.failure, func.count()).group_by(trials.c.status, trials.c.failure)
    trial_counts: dict[str, int] = {}
    failures: dict[str, int] = {}
    for status, failure, count in connection.execute(by_ending):
        trial_counts[status] = trial_counts.get(status, 0) + count
        if failure is not None:
            failures[failure] = failures.get(failure, 0) + count
    leased = select(func.count()).select_from(studies).where(studies.c.lease_expires_us > now)
    return Statistics(
        studies={row[0]: row[1] for row in connection.execute(by_status)},
        trials=trial_counts,
        failures=failures,
        leased=int(connection.execute(leased).scalar_one()),
    )


def known_workloads(connection: Connection) -> list[KnownWorkload]:
    """All workloads that have measurements, the one with the newest representative first."""
    configs, newest = func.count().label("configs"), func.max(records.c.trial).label("newest")
    found = select(records.c.workload, configs, newest).group_by(records.c.workload).subquery()
    rows = connection.execute(
        select(workloads.c.key, workloads.c.workload, found.c.configs)
        .join(found, found.c.workload == workloads.c.key)
        .order_by(found.c.newest.desc())
    )
    return [
        KnownWorkload(key=row.key, workload=Workload.from_dict(json.loads(row.workload)), configs=row.configs)
        for row in rows
    ]
