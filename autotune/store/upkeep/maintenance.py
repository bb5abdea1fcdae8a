"""Maintenance of a store: check, backup while in use, export as tables, vacuum."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from autotune.errors import SpecError, StoreError, StoreUnavailableError
from autotune.settings import expanded
from autotune.store import schema
from autotune.store.connection.diagnosis import diagnosed, file_errors
from autotune.store.sql import SqlStore
from autotune.store.upkeep.examination import examine
from autotune.store.upkeep.table_files import export
from autotune.whole_files import whole_file

__all__ = ["backup", "check", "export", "vacuum"]

BACKUP_DEADLINE_S = 3600.0
"""maximum time for `pg_dump`, s"""


def check(store: SqlStore) -> list[str]:
    """Return a message for each fault of the file and of each study; empty if there are none."""
    return list(examine(store).faults)


def backup(store: SqlStore, target: str | os.PathLike[str]) -> Path:
    """Copy the store, which may be in use, and return the copy's path: SQLite as a file, PostgreSQL
    in the custom format of `pg_dump`. The copy is written completely or not at all.

    Raises `SpecError` if the target exists or cannot be written.
    """
    target = expanded(target, field="target").absolute()
    location = store.database.location
    if target.exists():
        raise SpecError(
            f"a backup never overwrites a file, but {target} exists",
            remedy="use another file",
            field="target",
        )
    with diagnosed(location), file_errors(target, "target"):
        if location.path is not None:
            schema.back_up(location.path, target)
        elif location.is_sqlite:
            raise SpecError(
                "an in-memory store cannot be backed up",
                remedy="use a store in a file",
                field="store",
            )
        else:
            _dump(store, target)
    return target


def vacuum(store: SqlStore) -> None:
    """Return unused space to the disk, and update the query planner's statistics. SQLite
    temporarily needs free space of the file's size."""
    with (
        diagnosed(store.database.location),
        contextlib.closing(store.database.engine.raw_connection()) as connection,
    ):
        driver: Any = connection.driver_connection  # VACUUM is allowed only outside transactions
        if store.database.is_sqlite:
            for statement in ("VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"):
                driver.execute(statement).fetchall()
        else:
            driver.autocommit = True
            driver.execute("VACUUM (ANALYZE)")
            driver.autocommit = False


def _dump(store: SqlStore, target: Path) -> None:
    """Write a PostgreSQL store to the file with `pg_dump`."""
    program = shutil.which("pg_dump")
    if program is None:
        raise StoreError(
            "a backup of PostgreSQL needs pg_dump, which is not installed",
            remedy="install the PostgreSQL client programs",
        )
    url = store.database.location.url
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    with whole_file(target) as part:
        done = subprocess.run(
            [program, "--format=custom", f"--file={part}", f"--dbname={address}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BACKUP_DEADLINE_S,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise StoreUnavailableError(
                f"pg_dump failed: {''.join(reason)}",
                remedy="check that the server is running and pg_dump is at least as new as the server",
            )
