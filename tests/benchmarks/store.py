"""Time of store operations: `python -m tests.benchmarks.store [trial [SIZE ...] | history
[STUDIES]]`.

    trial      one trial from ask to end (added, started, 20 steps, ended) in a study that already holds 10, 1,000 or 10,000; in the same run
               Optuna's RDB storage on SQLite for ask, 6 suggestions and tell, without step metrics
    history    queries and file size with 1,000 studies (or STUDIES) x 200 trials x 20 steps

Rows that only fill the store are written in bulk, in the store's own format.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text, update

from autotune.ports import Decision, EndTrial, Fact, KeepTrial
from autotune.spec import Measurement, ParallelConfig, Trial, TrialStatus
from autotune.store import SqlStore, open_store
from autotune.store.packing import append_steps
from autotune.store.rows import ended_columns, json_text, new_trial_row
from autotune.store.tables import attempts, events, studies, trials
from autotune.store.upkeep.checksums import with_checksum
from autotune.testing.stores import (
    a_study,
    launch,
    measured,
    pending,
    reported,
    run_trial,
    running_study,
)

SIZES = (10, 1_000, 10_000)
REPEATS = 60
STEPS = 20
Row = dict[str, Any]


def a_trial(number: int, dice: random.Random) -> Trial:
    """A measured trial whose numbers do not compress better than real ones."""

    def series() -> tuple[float, ...]:
        return tuple(dice.random() for _ in range(STEPS - 2))

    config = ParallelConfig(dp=8, micro_batch_size=number + 1)
    measurement = Measurement(
        step_times_s=series(),
        losses=series(),
        grad_norms=series(),
        peak_memory_bytes=dice.random() * 8e10,
        tokens_per_step=1 << 20,
        num_ranks=8,
    )
    return replace(measured(pending(number, config)), measurement=measurement)


def rows_of(number: int, dice: random.Random) -> tuple[Row, Row, list[tuple[str, str]]]:
    """An ended trial as the store's own methods would write it: its row, that of its attempt with
    the steps, and kinds and data of its events.

    Study and workload are filled in by the caller.
    """
    trial = a_trial(number, dice)
    row = new_trial_row(trial, study=0, workload=0, now=0) | ended_columns(
        trial, trial, num_gpus=8, now=1
    )
    steps = append_steps(b"", reported(("", number, 1), 0, [dice.random() for _ in range(STEPS)]))
    launch = {
        "number": number,
        "attempt": 1,
        "fence": 1,
        "started_us": 0,
        "ended_us": 1,
        "steps": steps,
    }
    asked = {
        "number": number,
        "config": str(trial.config),
        "purpose": "search",
        "reason": "because",
    }
    ended = {"number": number, "status": "COMPLETED", "attempts": 1, "reward": 0.3}
    ended["tokens_per_s_per_gpu"] = dice.random()
    lines = [
        ("trial.asked", asked),
        ("trial.started", {"number": number, "attempt": 1}),
        ("trial.ended", ended),
    ]
    return (
        row | {"attempts": 1, "started_us": 0},
        launch,
        [(kind, json_text(data)) for kind, data in lines],
    )


def fill(store: SqlStore, study_id: str, first: int, count: int, dice: random.Random) -> None:
    """Writes `count` ended trials with attempts, steps and events."""
    with store.database.write() as connection:
        study = connection.execute(studies.select().where(studies.c.id == study_id)).one()
        mine = {"study": study.key}
        at = {**mine, "at_us": study.created_us}
        rows, launches, lines = list[Row](), list[Row](), list[Row]()
        for number in range(first, first + count):
            row, launch, told = rows_of(number, dice)
            rows.append({**row, **mine, "workload": study.workload})
            launches.append({**launch, **mine})
            for kind, data in told:
                lines.append(
                    {
                        **at,
                        "sequence": study.num_events + len(lines) + 1,
                        "kind": kind,
                        "data": data,
                    }
                )
        connection.execute(insert(trials), [with_checksum(trials, row) for row in rows])
        connection.execute(insert(attempts), [with_checksum(attempts, row) for row in launches])
        connection.execute(insert(events), [with_checksum(events, row) for row in lines])
        connection.execute(
            update(studies)
            .where(studies.c.key == study.key)
            .values(num_trials=first + count, num_events=study.num_events + len(lines))
        )


def represent(store: SqlStore) -> None:
    """Fills `records` from the trials, as the migrations do."""
    from autotune.store.migrations.versions.v0002 import RECORDS
    from autotune.store.migrations.versions.v0009 import fill as let_stand

    with store.database.write() as connection:
        connection.execute(text("DELETE FROM records"))
        connection.execute(text(RECORDS))
        let_stand(connection)


def times_ms(what: Callable[[], object], repeats: int) -> tuple[list[float], list[float]]:
    """Wall and CPU milliseconds of each call."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        what()
        walls.append(1e3 * (time.perf_counter() - wall))
        cpus.append(1e3 * (time.process_time() - cpu))
    return walls, cpus


def median_ms(what: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median wall and CPU milliseconds of a call."""
    walls, cpus = times_ms(what, repeats)
    return statistics.median(walls), statistics.median(cpus)


def per_trial(folder: Path, size: int) -> tuple[float, float]:
    """One more trial in a study of `size`."""
    store, dice = open_store(folder / f"{size}.db"), random.Random(size)
    lease = running_study(store)
    fill(store, lease.study, 0, size, dice)
    represent(store)
    numbers, decided = iter(range(size, size + REPEATS)), itertools.count(1)

    def keep(*facts: Fact) -> None:
        store.keep_decision(
            lease, Decision(number=next(decided), cause={"event": "Tick"}, facts=facts)
        )

    def once() -> None:
        number = next(numbers)
        trial = a_trial(number, dice)
        asked = replace(trial, status=TrialStatus.PENDING, measurement=None, reward=None)
        keep(KeepTrial(trial=asked), launch(lease, number, 1))
        store.add_steps(lease, [reported((lease.study, number, 1), 0, [0.1] * STEPS)])
        keep(EndTrial(trial=trial))

    taken = median_ms(once)
    store.close()
    return taken


def per_optuna_trial(folder: Path, size: int) -> tuple[float, float]:
    """The same in Optuna: random sampler, SQLite with its defaults."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=f"sqlite:///{folder}/optuna-{size}.db",
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    names = [f"knob{i}" for i in range(6)]
    spread = dict.fromkeys(names, optuna.distributions.IntDistribution(1, 64))
    done = optuna.trial.create_trial(
        params=dict.fromkeys(names, 1), distributions=spread, value=1.0
    )
    study.add_trials([done] * size)

    def once() -> None:
        trial = study.ask()
        for name in names:
            trial.suggest_int(name, 1, 64)
        study.tell(trial, 1.0)

    return median_ms(once)


def show_trials(sizes: Sequence[int] = SIZES) -> None:
    """The first table."""
    print(
        "| trials in the study | autotune, wall | autotune, CPU | Optuna RDB, wall | Optuna RDB, CPU | CPU ratio |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            wall, cpu = per_trial(Path(folder), size)
            other_wall, other_cpu = per_optuna_trial(Path(folder), size)
            figures = f"{wall:.1f} ms | {cpu:.1f} ms | {other_wall:.1f} ms | {other_cpu:.1f} ms | {other_cpu / cpu:.1f}"
            print(f"| {size:,} | {figures} |", flush=True)


def show_history(num_studies: int = 1000, num_trials: int = 200) -> None:
    """The second table."""
    with tempfile.TemporaryDirectory() as folder:
        path, dice = Path(folder) / "store.db", random.Random(0)
        store = open_store(path)
        models = [f"model-{i}" for i in range(20)]
        for number in range(num_studies):
            study = a_study(
                f"study-{number}", model=models[number % 20], num_gpus=8 * (1 + number // 20 % 5)
            )
            fill(store, store.submit(study, {"name": study.name}).id, 0, num_trials, dice)
        represent(store)
        lease = running_study(store)
        run_trial(store, lease, a_trial(0, dice))
        with store.database.write() as connection:
            connection.execute(text("ANALYZE"))
        some = store.studies(limit=1, offset=num_studies // 2)[0].id
        queries: dict[str, Callable[[], object]] = {
            "best 10 of all": store.best,
            "best 10 of a model": lambda: store.best(model="model-7"),
            "best 10 of a model and cluster": lambda: store.best(
                model="model-7", cluster="gpu-1x16"
            ),
            "best 10 by sequence length": lambda: store.best(seq_len=1024),
            "study page: record and 200 trials": lambda: (store.study(some), store.trials(some)),
            "newest 50 studies": store.studies,
            "live tail: events after the last seen": lambda: store.events(some, after=590),
            "statistics": store.statistics,
        }
        print("| query | median wall |\n|---|---|")
        for name, query in queries.items():
            print(f"| {name} | {median_ms(query)[0]:.1f} ms |", flush=True)
        store.close()
        print(f"| file | {os.path.getsize(path) / 2**20:.0f} MiB |")


def main(what: str = "", *sizes: str) -> None:
    """Prints the tables that were asked for."""
    if what in ("", "trial"):
        show_trials([int(size) for size in sizes] or SIZES)
    if what in ("", "history"):
        show_history(*[int(size) for size in sizes])


if __name__ == "__main__":
    main(*sys.argv[1:])
