"""The measured trial that stands for each config of each workload, kept up to date as trials end, so that `best` is one short index scan.

A config that was measured more than once is represented by its median (the lower one of an even number): the luckiest repeat would win
otherwise, and the more often a config is measured the more it would be overrated.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select, text
from sqlalchemy.dialects import postgresql, sqlite

from autotune.store.tables import records, trials, workloads


def keep_record(connection: Connection, workload: int, config_key: int) -> None:
    """Chooses the config's representative again, after one of its trials was measured."""
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:  # two studies may measure the same config at once; SQLite has one writer anyhow
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": config_key})
    measured = (
        trials.c.workload == workload,
        trials.c.config_key == config_key,
        trials.c.throughput.is_not(None),
    )
    count = connection.execute(select(func.count()).select_from(trials).where(*measured)).scalar_one()
    middle = connection.execute(
        select(trials.c.key, trials.c.throughput)
        .where(*measured)
        .order_by(trials.c.throughput, trials.c.key)
        .offset((count - 1) // 2)
        .limit(1)
    ).one()
    of = connection.execute(
        select(workloads.c.model, workloads.c.cluster, workloads.c.trainer).where(workloads.c.key == workload)
    ).one()
    values = {
        "workload": workload,
        "config_key": config_key,
        "trial": middle.key,
        "throughput": middle.throughput,
        "model": of.model,
        "cluster": of.cluster,
        "trainer": of.trainer,
    }
    dialect = postgresql if is_postgresql else sqlite
    connection.execute(
        dialect.insert(records)
        .values(**values)
        .on_conflict_do_update(
            index_elements=["workload", "config_key"], set_={"trial": middle.key, "throughput": middle.throughput}
        )
    )
