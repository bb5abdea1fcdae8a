"""`autotune store restore` and `autotune store migrate`: a backup in the place of a store, and the
upgrade of a store, tried first.

A restore checks the backup, makes sure that no process has the store open, keeps what was there
under another name, and removes the WAL that belonged to it: with an old `-wal` beside it SQLite
would apply old pages to the restored file.

Whenever the process ends, the store is either what it was or the backup, and is never missing: its
WAL is first copied into the main file, which then is the whole store; the file gets its second
name; then the backup takes the place of the first name, in one step. A damaged file cannot take its
WAL in: both get their second names before the WAL goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, create_engine, func, select, text
from sqlalchemy.exc import DatabaseError

from autotune.errors import (
    ConflictError,
    NotFoundError,
    SpecError,
    StoreCorruptError,
    StoreVersionError,
)
from autotune.settings import expanded
from autotune.store import schema
from autotune.store.connection.database import Database
from autotune.store.connection.diagnosis import DAMAGED, diagnosed
from autotune.store.connection.location import StoreLocation
from autotune.store.tables import studies, trials
from autotune.store.upkeep.examination import read_rows, rows_changed
from autotune.whole_files import part_of

LOCK_BYTES = (0x40000000, 512)
"""first byte and length of the range of a database file in which SQLite locks
(https://www.sqlite.org/lockingv3.html): every open connection to a store in WAL mode holds a shared
lock there"""
WAL = "-wal"
BESIDE = ("-shm", WAL)
KEPT = ".before-restore-"
"""between the name of a store and the time of its restore: the name under which it is kept"""
CHECKSUMS_SINCE = "0007"
"""version of the store whose rows may have a checksum"""
NAMED = 3
"""damaged rows of a backup that are named"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did."""

    version: str
    """of the backup; an older one is upgraded when the store is opened"""
    studies: int
    trials: int
    kept: Path | None
    """where the previous content is now; None if there was none"""


def restore(location: StoreLocation, backup: Path) -> Restored:
    """Puts the backup in the store's place.

    Raises `NotFoundError` and `StoreCorruptError` for the backup, `StoreVersionError` when a newer
    release wrote it, and `ConflictError` while a process has the store open.
    """
    path = location.path
    if path is None:
        raise SpecError(
            "this command restores only SQLite stores",
            remedy="restore PostgreSQL with `pg_restore --clean --if-exists --dbname=URL FILE`",
            field="store",
        )
    backup = expanded(backup, field="file").absolute()
    if not backup.is_file():
        raise NotFoundError(
            f"there is no backup at {backup}",
            remedy="specify a file written by `autotune store backup`",
        )
    if path.exists() and path.samefile(backup):
        raise SpecError(
            "a store cannot be restored from itself", remedy="specify the backup", field="file"
        )
    with diagnosed(location):
        version, num_studies, num_trials = _checked(backup)
        with part_of(path) as part:
            schema.back_up(backup, part)  # with its own WAL, where it has one
            _take_in_wal(path)
            with _alone(path):
                kept = _keep(path)
                for suffix in BESIDE:
                    _beside(path, suffix).unlink(missing_ok=True)
                part.replace(path)
        _sync_folder(path.parent)
    return Restored(version=version, studies=num_studies, trials=num_trials, kept=kept)


def migrate(location: StoreLocation, *, dry_run: bool) -> tuple[str | None, str]:
    """(version before, version after) of an upgrade. `dry_run`: all of it is done in a transaction
    that is undone, so that nothing changes.

    Raises what `open_store` raises.
    """
    database = Database(location)
    try:
        with database.read() as connection:
            before = schema.version(connection)
        if not dry_run:
            schema.prepare(database)
            return before, schema.HEAD
        schema.refuse_unknown(database, before)
        with contextlib.suppress(_UndoError), database.write() as connection:
            schema.upgrade(connection, schema.HEAD)
            raise _UndoError
        return before, schema.HEAD
    finally:
        database.close()


class _UndoError(Exception):
    """Ends a transaction without a trace."""


def _checked(backup: Path) -> tuple[str, int, int]:
    """Version and numbers of studies and trials of a backup that is sound: its pages, and the
    checksum of every row."""
    remedy = "use another backup"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(f"{backup.as_uri()}?mode=ro", uri=True)
    )
    try:
        with engine.connect() as connection:
            verdict = connection.scalar(text("PRAGMA integrity_check(1)"))
            found = connection.scalar(text("SELECT version_num FROM autotune_version"))
            if verdict != "ok" or found is None:
                said = " ".join(str(verdict).split())  # SQLite says it in several lines
                raise StoreCorruptError(f"the backup {backup} is damaged: {said}", remedy=remedy)
            if not (found.isdigit() and found <= schema.HEAD):
                raise StoreVersionError(
                    f"the backup {backup} has version {found}, but this release reads up to {schema.HEAD}",
                    remedy="upgrade autotune, or use another backup",
                )
            if found >= CHECKSUMS_SINCE and (changed := _changed_rows(connection)):
                raise StoreCorruptError(
                    f"the backup {backup} is damaged: {'; '.join(changed[:NAMED])}"
                    + (f"; and {len(changed) - NAMED} more rows" if len(changed) > NAMED else ""),
                    remedy=remedy,
                )
            counts = [
                connection.scalar(select(func.count()).select_from(table))
                for table in (studies, trials)
            ]
    except DatabaseError as error:
        raise StoreCorruptError(
            f"{backup} is not a backup of a store: {error.orig}", remedy=remedy
        ) from error
    finally:
        engine.dispose()
    return found, int(counts[0] or 0), int(counts[1] or 0)


def _changed_rows(connection: Connection) -> list[str]:
    """The rows that are not what was written, in sentences."""
    rows = connection.execute(select(studies.c.key, studies.c.id)).all()
    return [fault for row in rows for fault in rows_changed(read_rows(connection, row.key), row.id)]


def _take_in_wal(path: Path) -> None:
    """Copies the WAL into the main file and removes it, which SQLite does only where no other
    process has the store open. A damaged store stays as it is."""
    # SQLite removes the WAL of an empty file without reading it
    if not path.exists() or not path.stat().st_size:
        return
    try:
        # one that writes would remove the WAL of a damaged file
        with _connected(path, "ro") as reader:
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        with _connected(path, "rw") as writer:
            writer.execute("PRAGMA journal_mode=DELETE").fetchall()
    except sqlite3.DatabaseError as error:
        # `_alone` tells who is there
        if error.sqlite_errorcode & 0xFF not in (
            *DAMAGED,
            sqlite3.SQLITE_BUSY,
        ):
            raise


def _connected(path: Path, mode: str) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=0))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Raises `ConflictError` when another process has the store open; while the block runs nobody
    can begin to read it."""
    if not path.exists():
        yield
        return
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCK_BYTES[1], LOCK_BYTES[0])
        except OSError:
            raise ConflictError(
                f"a store can only be restored while no process has it open, but a process has {path} open",
                remedy="stop `autotune serve` and every running study that uses the store, then restore again",
            ) from None
        yield


def _keep(path: Path) -> Path | None:
    """Gives the store, with the WAL that it could not take in, a second name; returns that. None:
    there is no store."""
    if not path.exists():
        return None
    kept = path.with_name(f"{path.name}{KEPT}{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    _forget_other_names(path)
    wal = _beside(path, WAL)
    if wal.exists():
        _give_name(wal, _beside(kept, WAL))
    _give_name(path, kept)
    _sync_folder(path.parent)
    return kept


def _forget_other_names(path: Path) -> None:
    """Of a restore that was cut off. Under two names SQLite would not see that it is one file. A
    damaged one with a WAL of its own stays."""
    for name in list(path.parent.iterdir()):
        if (
            name.name.startswith(path.name + KEPT)
            and name.samefile(path)
            and not _beside(name, WAL).exists()
        ):
            name.unlink()


def _give_name(file: Path, name: Path) -> None:
    """A second name of the file; a copy where the file system knows no second names."""
    try:
        name.hardlink_to(file)
    except OSError:
        shutil.copy2(file, name)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _sync_folder(folder: Path) -> None:
    """Forces the new name to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
