"""For each workload and config, the measured trial that represents it and the speed at which it
stands (table `records`). Updated as trials and studies end, so that `best` is one short index scan.

A config that was measured more than once is represented by the trial with the median throughput
(the lower one of two). With the fastest trial instead, a config would look better the more often it
is measured. Simulated measurements count only where there is no real one.

It stands at what the finals of that trial's study say (`autotune.reward.ranking`): at the trial's
throughput until the study has ended.
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

AT_ONCE = 1000
"""configs of one statement: databases limit the number of its values"""

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
_KEEP = text(
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
_PLACE = text(
    "UPDATE records SET standing = :standing WHERE workload = :workload AND config_key = :config_key"
)


def keep_records(connection: Connection, workload: int, config_keys: Sequence[int]) -> None:
    """Chooses the representatives of these configs again, after trials of theirs were measured or
    deleted."""
    # two studies may measure the same config at once, or one ends: one lock for all of a workload,
    # which nobody can take in another order
    lock(connection, f"records of workload {workload}")
    for first in range(0, len(config_keys), AT_ONCE):
        asked = {
            "workload": workload,
            "config_keys": config_keys[first : first + AT_ONCE],
            "simulated": SIMULATED,
        }
        chosen = connection.execute(_CHOOSE, asked).all()
        speeds = {
            result: finals_per_gpu(json.loads(result), num_gpus)
            for result, num_gpus in {(row.result, row.num_gpus) for row in chosen}
        }
        kept = [
            {
                **row._mapping,
                "workload": workload,
                "standing": standing(row.config_key, row.throughput, speeds[row.result]),
            }
            for row in chosen
        ]
        if kept:
            connection.execute(_KEEP, kept)


def place_anew(connection: Connection, study: int, result: Mapping[str, Any]) -> None:
    """The configs that trials of the study with that key represent stand where its new result puts
    them. Which trial represents a config stays as it is."""
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
    placed = [(row, standing(row.config_key, row.throughput, speeds[row.num_gpus])) for row in rows]
    moved = [
        {"workload": row.workload, "config_key": row.config_key, "standing": stands}
        for row, stands in placed
        if stands != row.standing
    ]
    if moved:
        connection.execute(_PLACE, moved)


def finals_per_gpu(result: Mapping[str, Any], num_gpus: int) -> dict[int, float]:
    """By config key, tokens per second per GPU of the cluster in a study's finals, the winner's
    first. `result`: of its record."""
    return {
        config_key(config): speed / num_gpus for config, speed in speeds_in_finals(result).items()
    }
