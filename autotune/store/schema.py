"""Versions of the schema: create it in a new database, upgrade an older one after a backup, reject
a newer one.

The version is the row of `autotune_version`. All migrations run in one transaction that first locks
the database. So one of several processes that open a new store at once creates it, and the others
find it complete. A failed upgrade changes nothing.
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
"""version that this release reads and writes"""


def prepare(database: Database) -> None:
    """Create the schema, or upgrade it to version `HEAD`. Raises `StoreVersionError`,
    `StoreCorruptError`, `StoreUnavailableError`."""
    path = database.location.path
    if path is not None:
        _make_folder(database, path)
    with database.read() as connection:
        current = version(connection)
    if current != HEAD:
        check_version(database, current)
        if database.is_read_only:
            raise StoreVersionError(
                f"the store {database.location} has version {current or 'none'} and must be upgraded to {HEAD}, but it is read-only for this user",
                remedy="make the file and its folder writable, or use a copy of the file",
            )
        _upgrade_locked(database, path)
    database.set_prepared(HEAD)


def _upgrade_locked(database: Database, path: Path | None) -> None:
    """Back up and upgrade the database in a transaction that blocks other writers, so that the
    backup has everything they committed."""
    with database.write() as connection:
        lock(connection, "schema")
        current = version(connection)
        if current == HEAD:
            return
        check_version(database, current)
        if current is not None and path is not None:
            back_up(
                path,
                path.with_name(
                    f"{path.name}.v{current}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.backup"
                ),
            )
        is_new_file = current is None and connection.dialect.name == "sqlite"
        if is_new_file and _CREATE:
            for statement in _CREATE:
                connection.exec_driver_sql(statement)
            return
        upgrade(connection, HEAD)
        if is_new_file:
            own = "sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            created = connection.exec_driver_sql(
                f"SELECT sql FROM sqlite_master WHERE {own} ORDER BY rowid"
            )
            _CREATE[:] = [*created.scalars(), f"INSERT INTO autotune_version VALUES ('{HEAD}')"]


_CREATE: list[str] = []
"""statements that create the schema, read from the first new SQLite database of this process; they
take a tenth of the time of the migrations"""


def version(connection: Connection) -> str | None:
    """Return the database's version; None if it is empty. Raises `StoreCorruptError` if it has
    tables of another program."""
    tables = set(inspect(connection).get_table_names())
    if "autotune_version" in tables:
        number = connection.execute(text("SELECT version_num FROM autotune_version")).scalar()
        if number is not None:
            return str(number)
    if "studies" in tables or (tables and connection.dialect.name == "sqlite"):
        raise StoreCorruptError(
            f"this database is not an autotune store: it has the tables {', '.join(sorted(tables)[:5])}",
            remedy="use another file or database",
        )
    return None


_MIGRATION_LOCK = threading.Lock()
"""held during migrations, because Alembic stores the running one in a global variable"""


def upgrade(connection: Connection, target: str) -> None:
    """Run the migrations up to version `target`, in the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "autotune.store:migrations")
    config.attributes["connection"] = connection
    with _MIGRATION_LOCK:
        command.upgrade(config, target)


def back_up(source: Path, target: Path) -> None:
    """Copy an SQLite store, which may be in use. The copy gets its name only when it is
    complete."""
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as old,
        whole_file(target) as part,
        contextlib.closing(sqlite3.connect(part)) as new,
    ):
        # all pages in one step, because a backup in several steps restarts after each write
        old.backup(new)
        new.execute("PRAGMA journal_mode=DELETE")


def _make_folder(database: Database, path: Path) -> None:
    """Create the database file and its folder."""
    check_place(path)
    with diagnosed(database.location):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private(path)


def make_private(path: Path) -> None:
    """Create an empty file that only this user can read, unless it exists. SQLite gives the -wal
    and -shm files the same mode."""
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def check_version(database: Database, current: str | None) -> None:
    """Raise `StoreVersionError` if this release cannot read the version."""
    if current is None or (current.isdigit() and current <= HEAD):
        return
    raise StoreVersionError(
        f"the store {database.location} has version {current}, but this release reads up to {HEAD}",
        remedy="upgrade autotune, or use another store",
    )
