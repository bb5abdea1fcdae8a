"""The representative trial of each workload and config, and the speed that ranks it (table
`records`). Updated as trials and studies end, so that `best` is a short index scan.

A config that was measured more than once is represented by the trial with the median throughput
(the lower one of two). With the fastest trial instead, a config would look better the more often it
is measured. Simulated measurements count only if there is no real one.

The ranking speed (`standing`) is the trial's throughput, or after the finals of its study the
config's speed in them (`autotune.reward.ranking`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, text

from autotune.reward import speeds_in_finals, standing
from autotune.spec.study import SIMULATED
from autotune.store.connection.database import lock
from autotune.store.rows import config_key
from autotune.store.tables import trials

BATCH = 1000
"""maximum number of configs in a statement, because databases limit its parameters"""

_CHOOSE = text(
    """
    WITH measured AS (
        SELECT t.key, t.study, t.config_key, t.throughput, CASE WHEN s.runner = :simulated THEN 1 ELSE 0 END AS simulated
        FROM trials AS t JOIN studies AS s ON s.key = t.study
        WHERE t.workload = :workload AND t.config_key IN :config_keys AND t.throughput IS NOT NULL
    ), sorted AS (
        SELECT *, min(simulated) OVER (PARTITION BY config_key) AS counted,
            count(*) OVER alike AS num, row_number() OVER (alike ORDER BY throughput, key) AS place
        FROM measured WINDOW alike AS (PARTITION BY config_key, simulated)
    )
    SELECT c.config_key, c.key AS trial, c.throughput, w.model, w.cluster, w.trainer, w.num_gpus, p.result
    FROM sorted AS c JOIN workloads AS w ON w.key = :workload JOIN specs AS p ON p.study = c.study
    WHERE c.simulated = c.counted AND c.place = (c.num + 1) / 2
    """
).bindparams(bindparam("config_keys", expanding=True))
_UPSERT = text(
    """
    INSERT INTO records (workload, config_key, trial, throughput, standing, model, cluster, trainer)
    VALUES (:workload, :config_key, :trial, :throughput, :standing, :model, :cluster, :trainer)
    ON CONFLICT (workload, config_key)
    DO UPDATE SET trial = excluded.trial, throughput = excluded.throughput, standing = excluded.standing
    """
)

_REPRESENTED = text(
    """
    SELECT r.workload, r.config_key, r.throughput, r.standing, w.num_gpus
    FROM trials AS t JOIN records AS r ON r.trial = t.key JOIN workloads AS w ON w.key = r.workload
    WHERE t.study = :study
    """
)
_UPDATE_STANDING = text(
    "UPDATE records SET standing = :standing WHERE workload = :workload AND config_key = :config_key"
)


def update_records(connection: Connection, workload: int, config_keys: Sequence[int]) -> None:
    """Choose the representatives of these configs, after their trials were measured or deleted."""
    # several studies may change records of a workload at once: one lock for all of its records
    # avoids deadlocks
    lock(connection, f"records of workload {workload}")
    for first in range(0, len(config_keys), BATCH):
        parameters = {
            "workload": workload,
            "config_keys": config_keys[first : first + BATCH],
            "simulated": SIMULATED,
        }
        chosen = connection.execute(_CHOOSE, parameters).all()
        speeds = {
            result: finals_per_gpu(json.loads(result), num_gpus)
            for result, num_gpus in {(row.result, row.num_gpus) for row in chosen}
        }
        rows = [
            {
                **row._mapping,
                "workload": workload,
                "standing": standing(row.config_key, row.throughput, speeds[row.result]),
            }
            for row in chosen
        ]
        if rows:
            connection.execute(_UPSERT, rows)


def update_standings(connection: Connection, study: int, result: Mapping[str, Any]) -> None:
    """Update the ranking speeds of the configs that trials of this study represent, given its new
    result. `study`: key."""
    workloads_of = (
        select(trials.c.workload)
        .where(trials.c.study == study, trials.c.throughput.is_not(None))
        .distinct()
    )
    for workload in sorted(connection.scalars(workloads_of)):
        lock(connection, f"records of workload {workload}")
    rows = connection.execute(_REPRESENTED, {"study": study}).all()
    speeds = {
        num_gpus: finals_per_gpu(result, num_gpus) for num_gpus in {row.num_gpus for row in rows}
    }
    standings = [
        (row, standing(row.config_key, row.throughput, speeds[row.num_gpus])) for row in rows
    ]
    changed = [
        {"workload": row.workload, "config_key": row.config_key, "standing": speed}
        for row, speed in standings
        if speed != row.standing
    ]
    if changed:
        connection.execute(_UPDATE_STANDING, changed)


def finals_per_gpu(result: Mapping[str, Any], num_gpus: int) -> dict[int, float]:
    """Return tokens/s per GPU of the cluster in a study's finals, by config key, the winner first.
    `result`: of its record."""
    return {
        config_key(config): speed / num_gpus for config, speed in speeds_in_finals(result).items()
    }
