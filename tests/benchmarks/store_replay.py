"""What it costs to replay a store's decisions: `python -m tests.benchmarks.store_replay [STUDIES]`, by default 200 studies.

    kinds    one study of each searcher and length on the simulated runner: processor time of running it, and of replaying it (median of three)
    store    as many studies, copies of these in turn: `autotune store check` with and without the replay

Copies have the rows of their originals but for the study that they belong to, and were submitted at the same time: none learnt from another.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Table, insert, select

from autotune import api
from autotune.store import SqlStore, open_store
from autotune.store.checksums import SEALED, sealed
from autotune.store.examination import examine
from autotune.store.tables import specs, studies
from autotune.study.replay import replay_study
from tests.small_studies import spec

KINDS = (("cost_ranked", 10), ("cost_ranked", 50), ("bayesian", 10), ("bayesian", 50), ("optuna:tpe", 50))
"""searcher, trials"""
SPACE = {
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8],
    "micro_batch_size": [1, 2, 4, 8],
    "zero_stage": [0, 1, 2],
    "precision": ["bf16"],
}


def timed(what: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds of wall and of processor time of a call, and what it returned."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = what()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s, found


def run_one(store: SqlStore, searcher: str, trials: int) -> str:
    """Runs a study of that kind; its id."""
    budget = {"max_trials": trials, "min_gain": 0}
    document = spec(name=f"{searcher} {trials}", searcher=searcher, space=SPACE, budget=budget, runner="simulated")
    return api.tune(document, store=store).record.id


def copy(store: SqlStore, keys: list[int], count: int) -> None:
    """Fills the store with copies of the studies with these keys, up to `count` studies."""
    with store.database.write() as connection:
        first = max(keys) + 1
        for key in range(first, first + count - len(keys)):
            original = keys[key % len(keys)]
            row = dict(connection.execute(select(studies).where(studies.c.key == original)).one()._mapping)
            connection.execute(insert(studies).values(row | {"key": key, "id": f"copy{key}"}))
            for table in (specs, *SEALED):
                _copy_rows(connection, table, original, key)


def _copy_rows(connection: Any, table: Table, original: int, key: int) -> None:
    rows = [dict(r._mapping) for r in connection.execute(select(table).where(table.c.study == original))]
    for row in rows:
        row["study"] = key
        if table is not specs:
            row.pop("key", None)
            row["checksum"] = sealed(table, row)["checksum"]
    connection.execute(insert(table), rows)


def main(count: str = "200") -> None:
    """Prints the tables."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(open_store(Path(folder) / "store.db")) as store:
        print("| searcher | trials | decisions | run | replay |\n|---|---|---|---|---|")
        for searcher, trials in KINDS:
            with contextlib.closing(open_store(Path(folder) / "one.db")) as alone:
                _, ran_s, study_id = timed(partial(run_one, alone, searcher, trials))
                known = alone.study(study_id), alone.trials(study_id), alone.events(study_id, limit=10**6)
                took = [timed(partial(replay_study, alone, *known)) for _ in range(3)]
            (Path(folder) / "one.db").unlink()
            found = took[0][2]
            assert found.followed == found.decisions, found
            replay_s = statistics.median(cpu_s for _, cpu_s, _ in took)
            print(f"| {searcher} | {trials} | {found.decisions} | {ran_s:.2f} s | {replay_s:.2f} s |", flush=True)
        for searcher, trials in KINDS:
            run_one(store, searcher, trials)
        with store.database.read() as connection:
            keys = list(connection.scalars(select(studies.c.key)))
        copy(store, keys, int(count))
        print("\n| store check | wall | processor | decisions | faults |\n|---|---|---|---|---|")
        for name, replay in (("without replay", None), ("with replay", partial(replay_study, store))):
            wall_s, cpu_s, examined = timed(partial(examine, store, replay=replay))
            decisions = sum(s.replayed.followed for s in examined.studies if s.replayed)
            print(
                f"| {name} | {wall_s:.1f} s | {cpu_s:.1f} s | {decisions} follow | {len(examined.faults)} |", flush=True
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
