"""The schema's version: created on first opening, upgraded after a backup, refused when it is newer
than this release.

The version is one row of `autotune_version`. All migrations run in one transaction that first takes
the database's lock. Of many processes that open a new store at once, one creates it and the others
find it complete; a failed upgrade changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from autotune.errors import StoreCorruptError, StoreVersionError
from autotune.store.connection.database import Database, lock
from autotune.store.connection.diagnosis import diagnosed
from autotune.store.connection.location import check_place
from autotune.whole_files import whole_file

HEAD = "0010"
"""The version that this release reads and writes."""


def prepare(database: Database) -> None:
    """Brings the database to version `HEAD`. Raises `StoreVersionError`, `StoreCorruptError`,
    `StoreUnavailableError`."""
    path = database.location.path
    if path is not None:
        _make_folder(database, path)
    with database.read() as connection:
        found = version(connection)
    if found != HEAD:
        refuse_unknown(database, found)
        if database.is_read_only:
            raise StoreVersionError(
                f"the store {database.location} has version {found or 'none'} and must be upgraded to {HEAD}, but it is read-only for this user",
                remedy="make the file and its folder writable, or use a copy of the file",
            )
        _upgrade_locked(database, path)
    database.is_prepared(HEAD)


def _upgrade_locked(database: Database, path: Path | None) -> None:
    """Backs up and upgrades while nobody else can write: the backup holds all that was acknowledged
    before."""
    with database.write() as connection:
        lock(connection, "schema")
        found = version(connection)
        if found == HEAD:
            return
        refuse_unknown(database, found)
        if found is not None and path is not None:
            back_up(
                path,
                path.with_name(f"{path.name}.v{found}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.backup"),
            )
        is_new_file = found is None and connection.dialect.name == "sqlite"
        if is_new_file and _MADE:
            for statement in _MADE:
                connection.exec_driver_sql(statement)
            return
        upgrade(connection, HEAD)
        if is_new_file:
            own = "sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            made = connection.exec_driver_sql(
                f"SELECT sql FROM sqlite_master WHERE {own} ORDER BY rowid"
            )
            _MADE[:] = [*made.scalars(), f"INSERT INTO autotune_version VALUES ('{HEAD}')"]


_MADE: list[str] = []
"""what the migrations made of this process's first new SQLite database; the next ones are made by
the same statements, in a tenth of the time"""


def version(connection: Connection) -> str | None:
    """The database's version; None if it is empty. Raises `StoreCorruptError` if it holds tables of
    another program."""
    tables = set(inspect(connection).get_table_names())
    if "autotune_version" in tables:
        found = connection.execute(text("SELECT version_num FROM autotune_version")).scalar()
        if found is not None:
            return str(found)
    if "studies" in tables or (tables and connection.dialect.name == "sqlite"):
        raise StoreCorruptError(
            f"this database is not an autotune store: it has the tables {', '.join(sorted(tables)[:5])}",
            remedy="use another file or database",
        )
    return None


_MIGRATION_LOCK = threading.Lock()
"""Alembic holds the running migration in a global variable, so that only one thread may migrate at
a time."""


def upgrade(connection: Connection, target: str) -> None:
    """Runs the migrations up to `target`, in the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "autotune.store:migrations")
    config.attributes["connection"] = connection
    with _MIGRATION_LOCK:
        command.upgrade(config, target)


def back_up(source: Path, target: Path) -> None:
    """Copies an SQLite store, which may be in use. The copy appears under its name only when it is
    complete."""
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as old,
        whole_file(target) as part,
        contextlib.closing(sqlite3.connect(part)) as new,
    ):
        # in one step, from one snapshot: copied in several steps it begins again after each write
        # of others
        old.backup(new)
        new.execute("PRAGMA journal_mode=DELETE")


def _make_folder(database: Database, path: Path) -> None:
    check_place(path)
    with diagnosed(database.location):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private(path)


def make_private(path: Path) -> None:
    """Makes a database that only this user can read, unless there is one. SQLite gives the files
    beside it (-wal, -shm) the same mode."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def refuse_unknown(database: Database, found: str | None) -> None:
    """Raises `StoreVersionError` for a version that this release does not know."""
    if found is None or (found.isdigit() and found <= HEAD):
        return
    raise StoreVersionError(
        f"the store {database.location} has version {found}, but this release reads up to {HEAD}",
        remedy="upgrade autotune, or use another store",
    )
