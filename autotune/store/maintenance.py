"""Maintenance of a store: check, backup while in use, export as tables, vacuum."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, case, func, select, text

from autotune.errors import StoreCorruptError, StoreError, StoreUnavailableError
from autotune.spec.study import SIMULATED
from autotune.store import history, laws, queries, schema
from autotune.store.diagnosis import diagnosed
from autotune.store.sql import SqlStore
from autotune.store.table_files import export, study_keys
from autotune.store.tables import attempts, events, records, studies, trials

__all__ = ["backup", "check", "export", "vacuum"]

BACKUP_DEADLINE_S = 3600.0


def check(store: SqlStore) -> list[str]:
    """All faults found, in sentences: of the file's integrity, then of each study's history. Empty for a sound store."""
    faults = list(_integrity(store))
    for key, study_id in study_keys(store):
        faults += _study_faults(store, key, study_id)
    faults += _record_faults(store)
    return faults


def backup(store: SqlStore, target: str | os.PathLike[str]) -> Path:
    """Copies the store, which may be in use, completely or not at all: SQLite as a file, PostgreSQL with `pg_dump` in its own format.

    Raises `StoreUnavailableError` when the target exists already or cannot be written.
    """
    target = Path(target).expanduser().absolute()
    location = store.database.location
    if target.exists():
        raise StoreUnavailableError(
            f"a backup never overwrites a file, but {target} exists", remedy="name another file"
        )
    with diagnosed(location):
        if location.path is not None:
            schema.back_up(location.path, target)
        elif location.is_sqlite:
            raise StoreUnavailableError("a store in memory cannot be backed up", remedy="use a store in a file")
        else:
            _dump(store, target)
    return target


def vacuum(store: SqlStore) -> None:
    """Returns unused space to the disk and updates the query planner's statistics. SQLite needs free space of the file's size for it."""
    with diagnosed(store.database.location), contextlib.closing(store.database.engine.raw_connection()) as connection:
        driver: Any = connection.driver_connection  # VACUUM is allowed only outside transactions
        if store.database.is_sqlite:
            for statement in ("VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"):
                driver.execute(statement).fetchall()
        else:
            driver.autocommit = True
            driver.execute("VACUUM (ANALYZE)")
            driver.autocommit = False


def _integrity(store: SqlStore) -> Iterator[str]:
    if not store.database.is_sqlite:
        return
    try:
        with store.database.read() as connection:
            for (line,) in connection.execute(text("PRAGMA integrity_check(20)")):
                if line != "ok":
                    yield f"the file is damaged: {line}"
            for row in connection.execute(text("PRAGMA foreign_key_check")):
                yield f"row {row[1]} of table {row[0]} refers to a row of {row[2]} that does not exist"
    except StoreError as error:
        yield error.message


def _study_faults(store: SqlStore, key: int, study_id: str) -> list[str]:
    try:
        with store.database.read() as connection:  # one snapshot, because the study may be running
            of = queries.study(connection, study_id), queries.list_trials(connection, study_id)
            lines = history.read(connection, key, study_id, after=0, limit=None)
            return [*laws.broken_laws(*of, lines), *_count_faults(connection, key, study_id)]
    except (StoreCorruptError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"study {study_id}: cannot be read: {error}"]


def _count_faults(connection: Connection, key: int, study_id: str) -> Iterator[str]:
    counters = connection.execute(select(studies.c.num_trials, studies.c.num_events).where(studies.c.key == key)).one()
    asked = select(func.count()).select_from(trials).where(trials.c.study == key)
    written = select(func.count()).select_from(events).where(events.c.study == key)
    launched = select(func.count()).select_from(attempts).where(attempts.c.study == key)
    launches = select(func.coalesce(func.sum(trials.c.attempts), 0)).where(trials.c.study == key)
    pairs = {
        "trials": (counters.num_trials, connection.execute(asked).scalar_one()),
        "events": (counters.num_events, connection.execute(written).scalar_one()),
        "attempts": (connection.execute(launches).scalar_one(), connection.execute(launched).scalar_one()),
    }
    for name, (counted, found) in pairs.items():
        if counted != found:
            yield f"study {study_id}: its counter says {counted} {name}, but it has {found}"


def _record_faults(store: SqlStore) -> Iterator[str]:
    """Configs whose representative is missing or is not the median of the config's trials."""
    simulated = case((studies.c.runner == SIMULATED, 1), else_=0)
    counted = (
        select(trials.c.workload, trials.c.config_key, trials.c.throughput, simulated.label("simulated"))
        .join(studies, studies.c.key == trials.c.study)
        .where(trials.c.throughput.is_not(None))
        .subquery()
    )
    config = (counted.c.workload, counted.c.config_key)
    real = select(*config, func.min(counted.c.simulated).label("simulated")).group_by(*config).subquery()
    matching = [counted.c[name] == real.c[name] for name in ("workload", "config_key", "simulated")]
    measured = (
        select(*config, real.c.simulated, func.count().label("places"))
        .join(real, and_(*matching))
        .group_by(*config, real.c.simulated)
        .subquery()
    )
    others = counted.alias()
    joined = (measured.c.workload == records.c.workload) & (measured.c.config_key == records.c.config_key)
    slower = (
        select(func.count())
        .select_from(others)
        .where(
            others.c.workload == records.c.workload,
            others.c.config_key == records.c.config_key,
            others.c.simulated == measured.c.simulated,
            others.c.throughput < records.c.throughput,
        )
        .correlate(records, measured)
        .scalar_subquery()
    )
    query = select(measured.c.workload, measured.c.places, records.c.trial, slower.label("slower")).join(
        records, joined, isouter=True
    )
    with store.database.read() as connection:
        for row in connection.execute(query):
            if row.trial is None or row.slower > (row.places - 1) // 2:
                yield f"a config of workload {row.workload} is not represented by the median of its {row.places} trials"


def _dump(store: SqlStore, target: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        raise StoreUnavailableError(
            "a backup of PostgreSQL needs pg_dump, which is not installed",
            remedy="install the PostgreSQL client programs",
        )
    url = store.database.location.url
    part = target.with_name(target.name + ".part")
    plain = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    try:
        done = subprocess.run(
            [program, "--format=custom", f"--file={part}", f"--dbname={plain}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BACKUP_DEADLINE_S,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise StoreUnavailableError(f"pg_dump failed: {''.join(reason)}", remedy="check that the server runs")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
