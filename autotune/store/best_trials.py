"""For each workload and config, the measured trial that represents it (table `records`). Updated as trials end, so that `best` is one short index scan.

A config that was measured more than once is represented by the trial with the median throughput (the lower one of two). With the fastest trial
instead, a config would look better the more often it is measured. Simulated measurements count only where there is no real one.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from autotune.spec.study import SIMULATED
from autotune.store.database import lock

_CHOOSE = text(
    """
    INSERT INTO records (workload, config_key, trial, throughput, model, cluster, trainer)
    WITH measured AS (
        SELECT t.key, t.workload, t.config_key, t.throughput,
            CASE WHEN s.runner = :simulated THEN 1 ELSE 0 END AS simulated
        FROM trials AS t JOIN studies AS s ON s.key = t.study
        WHERE t.workload = :workload AND t.config_key = :config_key AND t.throughput IS NOT NULL
    ), counted AS (
        SELECT * FROM measured WHERE simulated = (SELECT min(simulated) FROM measured)
    )
    SELECT c.workload, c.config_key, c.key, c.throughput, w.model, w.cluster, w.trainer
    FROM counted AS c JOIN workloads AS w ON w.key = c.workload
    WHERE true
    ORDER BY c.throughput, c.key
    LIMIT 1 OFFSET (SELECT (count(*) - 1) / 2 FROM counted)
    ON CONFLICT (workload, config_key) DO UPDATE SET trial = excluded.trial, throughput = excluded.throughput
    """
)


def keep_record(connection: Connection, workload: int, config_key: int) -> None:
    """Chooses the representative of the config again, after one of its trials was measured."""
    lock(connection, f"record {config_key}")  # two studies may measure the same config at once
    connection.execute(_CHOOSE, {"workload": workload, "config_key": config_key, "simulated": SIMULATED})
