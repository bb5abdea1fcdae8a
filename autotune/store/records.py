"""The measured trial that stands for each config of each workload, kept up to date as trials end, so that `best` is one short index scan.

A config that was measured more than once is represented by its median (the lower one of an even number): the luckiest repeat would win
otherwise, and the more often a config is measured the more it would be overrated.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from autotune.store.database import lock

_CHOOSE = text(
    """
    INSERT INTO records (workload, config_key, trial, throughput, model, cluster, trainer)
    SELECT t.workload, t.config_key, t.key, t.throughput, w.model, w.cluster, w.trainer
    FROM trials AS t JOIN workloads AS w ON w.key = t.workload
    WHERE t.workload = :workload AND t.config_key = :config_key AND t.throughput IS NOT NULL
    ORDER BY t.throughput, t.key
    LIMIT 1 OFFSET (
        SELECT (count(*) - 1) / 2 FROM trials
        WHERE workload = :workload AND config_key = :config_key AND throughput IS NOT NULL
    )
    ON CONFLICT (workload, config_key) DO UPDATE SET trial = excluded.trial, throughput = excluded.throughput
    """
)


def keep_record(connection: Connection, workload: int, config_key: int) -> None:
    """Chooses the config's representative again, after one of its trials was measured."""
    lock(connection, f"record {config_key}")  # two studies may measure the same config at once
    connection.execute(_CHOOSE, {"workload": workload, "config_key": config_key})
