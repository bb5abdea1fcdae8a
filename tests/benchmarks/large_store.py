"""A large store: `python -m tests.benchmarks.large_store sqlite|postgresql [STUDIES [TRIALS
[queries|upkeep|copies|upgrade]]]`, by default all of 10,000 studies x 50 trials x 20 steps.

    queries    medians of wall and of this process's CPU time, and the slowest of the repeats; after a warm-up of one
    upkeep     deletion of studies, and a check, once
    copies     backup while four processes write, and restore; once each
    upgrade    of an SQLite store from version 0008, as its first process of a newer release does it, with the backup that it makes first; once

PostgreSQL is a server started for this, with its packaged settings. The rows are written in bulk,
in the store's own format: each of 2,000 different trials stands in many studies, at a speed of its
own; the three fastest of a study are its finalists. Assumes a disk with room for three such stores
(SQLite: about 1.1 GiB each).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, insert, select, update

from autotune.results.answers import past_studies
from autotune.results.best_known import best_known
from autotune.results.question import Question
from autotune.spec import StudyStatus
from autotune.store import SqlStore, open_store
from autotune.store.connection.location import find_location
from autotune.store.migrations.versions import v0009
from autotune.store.packing import pack_document, unpack_document
from autotune.store.tables import attempts, events, specs, studies, trials, workloads
from autotune.store.upkeep import maintenance, restoring
from autotune.store.upkeep.checksums import with_checksum
from autotune.study.assembly import history_of
from autotune.testing.stores.sample_studies import (
    LONG_S,
    a_study,
    measured,
    pending,
    run_trial,
    running_study,
)
from tests.benchmarks.store import Row, represent, rows_of, times_ms
from tests.postgresql import postgres_server

STUDIES, TRIALS = 10_000, 50
MODELS, SIZES = 20, 5
VARIANTS = 40
"""different trials with one number"""
FINALISTS = 3
FINAL = 0.97
"""speed in the finals by that in the search"""
REPEATS = 30
WRITERS = 4
BATCH = QUEUED = 100
"""studies of one transaction; studies that wait to be run"""


def patterns(
    num_trials: int, dice: random.Random
) -> list[list[tuple[Row, Row, list[tuple[str, str]]]]]:
    """By number and variant: the row of the trial, that of its attempt, and kinds and data of its
    events."""
    return [[rows_of(number, dice) for _ in range(VARIANTS)] for number in range(num_trials)]


def fill(store: SqlStore, num_studies: int, num_trials: int) -> None:
    """Writes the studies, all of them COMPLETED but the newest hundred, which are QUEUED and have
    no trials yet."""
    dice = random.Random(0)
    known, numbers = patterns(num_trials, dice), iter(range(num_studies))
    while batch := list(itertools.islice(numbers, BATCH)):
        for number in batch:
            model, gpus = f"model-{number % MODELS}", 8 * (1 + number // MODELS % SIZES)
            study = a_study(f"study-{number}", model=model, num_gpus=gpus)
            store.submit(study, {"name": study.name}, owner=f"owner-{number % 7}")
        if batch[-1] < num_studies - QUEUED:
            _fill_newest(store, len(batch), known, dice)
    represent(store)
    maintenance.vacuum(store)


def _fill_newest(store: SqlStore, count: int, known: list[Any], dice: random.Random) -> None:
    rows: dict[Table, list[Row]] = {trials: [], attempts: [], events: []}
    with store.database.write() as connection:
        newest = select(studies, workloads.c.num_gpus).join(
            workloads, workloads.c.key == studies.c.workload
        )
        for study in connection.execute(newest.order_by(studies.c.key.desc()).limit(count)).all():
            mine, sequence = {"study": study.key}, itertools.count(study.num_events + 1)
            at, finals = {**mine, "at_us": study.created_us}, list[Row]()
            for number, variants in enumerate(known):
                trial, launch, lines = dice.choice(variants)
                found, config, tokens_per_s = _at_another_speed(
                    trial, study.num_gpus, dice.uniform(0.5, 1.5)
                )
                finals.append(
                    {"number": number, "config": config, "tokens_per_s": tokens_per_s * FINAL}
                )
                rows[trials].append({**found, **mine, "workload": study.workload})
                rows[attempts].append({**launch, **mine})
                told = [
                    *lines[:-1],
                    (lines[-1][0], _with_throughput(lines[-1][1], found["throughput"])),
                ]
                rows[events] += [
                    {**at, "sequence": next(sequence), "kind": kind, "data": data}
                    for kind, data in told
                ]
            rows[events].append(
                {**at, "sequence": next(sequence), "kind": "study.completed", "data": "{}"}
            )
            ended = {
                "status": "COMPLETED",
                "started_us": study.created_us,
                "ended_us": study.created_us,
            }
            counts = {"num_trials": len(known), "num_events": next(sequence) - 1}
            finals = sorted(finals, key=lambda final: -final["tokens_per_s"])[:FINALISTS]
            best = {"best": finals[0]["number"]}
            connection.execute(
                update(studies).where(studies.c.key == study.key).values(ended | counts | best)
            )
            result = json.dumps({"stop_reason": "the budget is spent", "finals": finals})
            connection.execute(
                update(specs).where(specs.c.study == study.key).values(result=result)
            )
        for table, lines in rows.items():
            connection.execute(insert(table), [with_checksum(table, line) for line in lines])


def _at_another_speed(row: Row, num_gpus: int, factor: float) -> tuple[Row, dict[str, Any], float]:
    """The row of a trial that was so much faster, its config, and its tokens per second."""
    document = unpack_document(row["document"])
    times_s = [time_s / factor for time_s in document["measurement"]["step_times_s"]]
    document["measurement"]["step_times_s"] = times_s
    tokens_per_s = document["measurement"]["tokens_per_step"] / statistics.fmean(times_s)
    figures = {"document": pack_document(document), "throughput": tokens_per_s / num_gpus}
    return {**row, **figures}, document["config"], tokens_per_s


def _with_throughput(data: str, throughput: float) -> str:
    return json.dumps({**json.loads(data), "tokens_per_s_per_gpu": throughput})


def show(name: str, what: Callable[[], object], repeats: int = REPEATS) -> None:
    """A line of the table."""
    what()
    walls, cpus = times_ms(what, repeats)
    wall_ms, cpu_ms = statistics.median(walls), statistics.median(cpus)
    print(f"| {name} | {wall_ms:.1f} ms | {cpu_ms:.1f} ms | {max(walls):.1f} ms |", flush=True)


def show_queries(store: SqlStore, num_studies: int) -> None:
    """What people and controllers ask."""
    ids = [record.id for record in store.studies(limit=40, offset=num_studies // 2)]
    some, turn = ids[0], itertools.cycle(ids)
    queued = itertools.cycle(record.id for record in store.claimable())

    def claim() -> None:
        lease = store.claim(next(queued), "benchmark", lease_s=LONG_S)
        assert lease is not None
        store.release(lease)

    last = len(store.events(some, limit=10_000))
    print("| query | wall, median | CPU, median | wall, slowest |\n|---|---|---|---|")
    show("newest 50 studies", store.studies)
    show("50 studies from the middle of the list", lambda: store.studies(offset=num_studies // 2))
    show("50 studies of a model", lambda: store.studies(model="model-7"))
    show(
        "50 studies of an owner that completed",
        lambda: store.studies(owner="owner-3", status=StudyStatus.COMPLETED),
    )
    show("studies of a name", lambda: store.studies(name="study-77"))
    show("best 10 of all", store.best)
    show("best 10 of a model", lambda: store.best(model="model-7"))
    show("best 10 of a model and cluster", lambda: store.best(model="model-7", cluster="gpu-1x16"))
    show("best 10 by sequence length", lambda: store.best(seq_len=1024))
    show("best 10 of an owner", lambda: store.best(owner="owner-3"))
    show("best of each model and cluster", lambda: store.best(one_each=True))
    show(
        "best 10 of a model, as `autotune best` shows them",
        lambda: past_studies(store, model="model-7"),
    )
    show("the best of 10 models and clusters, as it shows them", lambda: past_studies(store))
    asked = Question(model="model-7", cluster="gpu-1x16")
    show("best known of a model on a cluster, with its evidence", lambda: best_known(store, asked))
    show(
        "study page: record and trials", lambda: (store.study(next(turn)), store.trials(next(turn)))
    )
    show("live tail: events after the last seen", lambda: store.events(some, after=last - 10))
    show("revision, as watchers ask for it", lambda: store.revision(some))
    show("studies to claim", store.claimable)
    show("claim and release", claim)
    show("statistics", store.statistics)
    show("workloads that have measurements", store.known_workloads)
    new = a_study("new", model="model-7", num_gpus=16)
    show(
        "trials that a new study learns from",
        lambda: history_of(new, store, before=datetime.now(UTC)),
    )


def write_until(address: str, started: Event, ended: Event, written: Any) -> None:
    """Runs one trial after another, as a controller does, and counts them."""
    with contextlib.closing(open_store(address)) as store:
        lease = running_study(store)
        started.set()
        for number in itertools.count():
            if ended.is_set():
                return
            run_trial(store, lease, measured(pending(number)))
            with written.get_lock():
                written.value += 1


@contextlib.contextmanager
def writers(address: str) -> Iterator[Any]:
    """Processes that write as fast as they can; yields how many trials they have written."""
    context = multiprocessing.get_context("spawn")
    ended, written = context.Event(), context.Value("i", 0)
    begun = [context.Event() for _ in range(WRITERS)]
    processes = [
        context.Process(target=write_until, args=(address, event, ended, written))
        for event in begun
    ]
    for process in processes:
        process.start()
    try:
        for event in begun:
            event.wait(60)
        yield written
    finally:
        ended.set()
        for process in processes:
            process.join(60)


def timed(what: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and CPU seconds of a call, and what it returned."""
    began_s, used_s = time.perf_counter(), time.process_time()
    found = what()
    return time.perf_counter() - began_s, time.process_time() - used_s, found


def show_upkeep(store: SqlStore) -> None:
    """What operators do in a store."""
    print("| upkeep | wall | CPU | |\n|---|---|---|---|")
    ended = [record.id for record in store.studies(status=StudyStatus.COMPLETED)]
    taken = [timed(partial(store.delete, study_id))[:2] for study_id in ended]
    wall_ms, cpu_ms = (1e3 * statistics.median(times) for times in zip(*taken, strict=True))
    print(
        f"| delete a study | {wall_ms:.1f} ms | {cpu_ms:.1f} ms | median of {len(ended)} |",
        flush=True,
    )
    wall_s, cpu_s, faults = timed(lambda: maintenance.check(store))
    print(f"| check | {wall_s:.1f} s | {cpu_s:.1f} s | {len(faults)} faults |", flush=True)


def show_copies(
    store: SqlStore, address: str, folder: Path, new_database: Callable[[], str]
) -> None:
    """What operators do with the whole of a store. `new_database`: of the same server, for what is
    restored."""
    print("| copies | wall | CPU | |\n|---|---|---|---|")
    copy = folder / "backup"
    with writers(address) as written:
        before = written.value
        wall_s, cpu_s, _ = timed(lambda: maintenance.backup(store, copy))
        rate = (written.value - before) / wall_s
    note = f"{copy.stat().st_size / 2**20:.0f} MiB; {rate:.0f} trials/s were written meanwhile"
    print(
        f"| backup while {WRITERS} processes write | {wall_s:.1f} s | {cpu_s:.1f} s | {note} |",
        flush=True,
    )
    if store.database.is_sqlite:
        store.close()
        wall_s, cpu_s, restored = timed(lambda: restoring.restore(find_location(address), copy))
        counted = [restored.studies, restored.trials]
    else:
        place = (
            find_location(new_database())
            .url.set(drivername="postgresql")
            .render_as_string(hide_password=False)
        )
        wall_s, cpu_s, _ = timed(
            lambda: subprocess.run(["pg_restore", f"--dbname={place}", str(copy)], check=True)
        )
        with contextlib.closing(open_store(place)) as again, again.database.read() as connection:
            counted = [
                connection.scalar(select(func.count()).select_from(table)) or 0
                for table in (studies, trials)
            ]
    print(
        f"| restore | {wall_s:.1f} s | {cpu_s:.1f} s | {counted[0]:,} studies, {counted[1]:,} trials |",
        flush=True,
    )


def show_upgrade(path: Path) -> None:
    """The upgrade of a store in which `records` had no column `standing`."""
    sorted_by = {name: [*columns, "throughput"] for name, columns in v0009.INDEXES.items()}
    with contextlib.closing(sqlite3.connect(path)) as older:
        for name, columns in sorted_by.items():
            older.execute(f"DROP INDEX {name}")
            older.execute(
                f"CREATE INDEX {name.replace('standing', 'throughput')} ON records({', '.join(columns)})"
            )
        older.execute("ALTER TABLE records DROP COLUMN standing")
        older.execute(f"UPDATE autotune_version SET version_num = '{v0009.down_revision}'")
        older.commit()
    wall_s, cpu_s, (before, after) = timed(
        lambda: restoring.migrate(find_location(str(path)), dry_run=False)
    )
    print(
        f"| upgrade from {before} to {after} | {wall_s:.1f} s | {cpu_s:.1f} s | {path.stat().st_size / 2**20:.0f} MiB |"
    )


def main(
    kind: str = "sqlite",
    num_studies: str = str(STUDIES),
    num_trials: str = str(TRIALS),
    part: str = "all",
) -> None:
    """Prints the tables."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        new_database: Callable[[], str] = partial(str, folder / "store.db")
        if kind == "postgresql":
            new_database = stack.enter_context(postgres_server(fsync=True)).new_database
        address = new_database()
        store = stack.enter_context(contextlib.closing(open_store(address)))
        took_s, _, _ = timed(lambda: fill(store, int(num_studies), int(num_trials)))
        print(f"{kind}: {num_studies} studies x {num_trials} trials, written in {took_s:.0f} s")
        if part in ("all", "queries"):
            show_queries(store, int(num_studies))
        if part in ("all", "upkeep"):
            show_upkeep(store)
        if part in ("all", "copies"):
            show_copies(store, address, folder, new_database)
        if part == "upgrade":
            store.close()
            show_upgrade(Path(address))


if __name__ == "__main__":
    main(*sys.argv[1:])
