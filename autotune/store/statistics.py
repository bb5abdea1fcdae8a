"""Counts for dashboards, and the workloads that have measurements. Each number is read from an index."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from autotune.ports import KnownWorkload, Statistics
from autotune.spec.plain import workload_from_dict
from autotune.store.database import from_us
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
    """All workloads that have measurements, the latest measured first."""
    configs = select(records.c.workload, func.count().label("configs")).group_by(records.c.workload).subquery()
    measured = (
        select(trials.c.workload, func.count().label("trials"), func.max(trials.c.ended_us).label("last_us"))
        .where(trials.c.throughput.is_not(None))
        .group_by(trials.c.workload)
        .subquery()
    )
    rows = connection.execute(
        select(workloads.c.key, workloads.c.workload, configs.c.configs, measured.c.trials, measured.c.last_us)
        .join(configs, configs.c.workload == workloads.c.key)
        .join(measured, measured.c.workload == workloads.c.key)
        .order_by(measured.c.last_us.desc(), workloads.c.key)
    )
    return [
        KnownWorkload(
            key=row.key,
            workload=workload_from_dict(json.loads(row.workload)),
            configs=row.configs,
            trials=row.trials,
            last_at=from_us(row.last_us),
        )
        for row in rows
    ]
