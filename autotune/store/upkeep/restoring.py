"""`autotune store restore` replaces a store by a backup; `autotune store migrate` upgrades a store,
with an optional dry run.

A restore checks the backup and that no process has the store open. The old store is kept under
another name, and its WAL is removed, because SQLite would apply its pages to the restored file.

If the process is killed, the store is either the old one or the backup, and never missing: the WAL
is first copied into the main file, which then is the complete store; the file gets a second name;
then the backup replaces the first name atomically. A damaged file cannot absorb its WAL, so both
get second names before the WAL is removed.
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
from autotune.store.upkeep.examination import changed_rows, read_rows
from autotune.whole_files import part_of

LOCK_BYTES = (0x40000000, 512)
"""first byte and length of the range of a database file that SQLite locks
(https://www.sqlite.org/lockingv3.html): every open connection to a store in WAL mode holds a shared
lock there"""
WAL = "-wal"
SIDE_FILES = ("-shm", WAL)
"""suffixes of the files that SQLite creates next to a database"""
OLD = ".before-restore-"
"""part of an old store's name, between the store's name and the time of the restore"""
CHECKSUMS_SINCE = "0007"
"""first version of the store whose rows may have a checksum"""
MAX_LISTED = 3
"""maximum number of damaged rows of a backup that are listed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result of a restore."""

    version: str
    """version of the backup; an older one is upgraded when the store is opened"""
    studies: int
    """number of studies in the backup"""
    trials: int
    """number of trials in the backup"""
    kept: Path | None
    """path of the old store; None if there was none"""


def restore(location: StoreLocation, backup: Path) -> Restored:
    """Replace the store by the backup.

    Raises `NotFoundError` or `StoreCorruptError` for the backup, `StoreVersionError` if a newer
    release wrote it, and `ConflictError` if a process has the store open.
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
            schema.back_up(backup, part)  # including the backup's WAL
            _absorb_wal(path)
            with _exclusive(path):
                kept = _keep_old(path)
                for suffix in SIDE_FILES:
                    _side_file(path, suffix).unlink(missing_ok=True)
                part.replace(path)
        _sync_folder(path.parent)
    return Restored(version=version, studies=num_studies, trials=num_trials, kept=kept)


def migrate(location: StoreLocation, *, dry_run: bool) -> tuple[str | None, str]:
    """Upgrade the store, and return (version before, version after). `dry_run`: roll the upgrade
    back. Raises what `open_store` raises."""
    database = Database(location)
    try:
        with database.read() as connection:
            before = schema.version(connection)
        if not dry_run:
            schema.prepare(database)
            return before, schema.HEAD
        schema.check_version(database, before)
        with contextlib.suppress(_RollbackError), database.write() as connection:
            schema.upgrade(connection, schema.HEAD)
            raise _RollbackError
        return before, schema.HEAD
    finally:
        database.close()


class _RollbackError(Exception):
    """Rolls a transaction back."""


def _checked(backup: Path) -> tuple[str, int, int]:
    """Check the pages and the checksums of a backup, and return its version and its numbers of
    studies and trials. Raises `StoreCorruptError` or `StoreVersionError`."""
    remedy = "use another backup"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(f"{backup.as_uri()}?mode=ro", uri=True)
    )
    try:
        with engine.connect() as connection:
            verdict = connection.scalar(text("PRAGMA integrity_check(1)"))
            version = connection.scalar(text("SELECT version_num FROM autotune_version"))
            if verdict != "ok" or version is None:
                damage = " ".join(str(verdict).split())  # SQLite's message has several lines
                raise StoreCorruptError(f"the backup {backup} is damaged: {damage}", remedy=remedy)
            if not (version.isdigit() and version <= schema.HEAD):
                raise StoreVersionError(
                    f"the backup {backup} has version {version}, but this release reads up to {schema.HEAD}",
                    remedy="upgrade autotune, or use another backup",
                )
            if version >= CHECKSUMS_SINCE and (changed := _changed_rows(connection)):
                more = len(changed) - MAX_LISTED
                raise StoreCorruptError(
                    f"the backup {backup} is damaged: {'; '.join(changed[:MAX_LISTED])}"
                    + (f"; and {more} more rows" if more > 0 else ""),
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
    return version, int(counts[0] or 0), int(counts[1] or 0)


def _changed_rows(connection: Connection) -> list[str]:
    """Return a message for each row that does not match its checksum."""
    rows = connection.execute(select(studies.c.key, studies.c.id)).all()
    return [fault for row in rows for fault in changed_rows(read_rows(connection, row.key), row.id)]


def _absorb_wal(path: Path) -> None:
    """Copy the WAL into the main file and remove it, which SQLite does only if no other process has
    the store open. A damaged store is not changed."""
    # SQLite removes the WAL of an empty file without reading it
    if not path.exists() or not path.stat().st_size:
        return
    try:
        # check it with a reader first, because a writer would remove the WAL of a damaged file
        with _connected(path, "ro") as reader:
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        with _connected(path, "rw") as writer:
            writer.execute("PRAGMA journal_mode=DELETE").fetchall()
    except sqlite3.DatabaseError as error:
        # if a process has the store open, `_exclusive` raises
        if error.sqlite_errorcode & 0xFF not in (
            *DAMAGED,
            sqlite3.SQLITE_BUSY,
        ):
            raise


def _connected(path: Path, mode: str) -> contextlib.closing[sqlite3.Connection]:
    """Return a connection that does not wait for locks."""
    return contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=0))


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Lock the store, so that no process can open it in the block. Raises `ConflictError` if a
    process has it open."""
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


def _keep_old(path: Path) -> Path | None:
    """Give the store, and its WAL if it was not absorbed, a second name, and return that; None if
    there is no store."""
    if not path.exists():
        return None
    kept = path.with_name(f"{path.name}{OLD}{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    _remove_other_names(path)
    wal = _side_file(path, WAL)
    if wal.exists():
        _give_name(wal, _side_file(kept, WAL))
    _give_name(path, kept)
    _sync_folder(path.parent)
    return kept


def _remove_other_names(path: Path) -> None:
    """Remove second names of the store from an interrupted restore, because SQLite cannot detect
    that two names are one file. A name with its own WAL, of a damaged file, is not removed."""
    for other in list(path.parent.iterdir()):
        if (
            other.name.startswith(path.name + OLD)
            and other.samefile(path)
            and not _side_file(other, WAL).exists()
        ):
            other.unlink()


def _give_name(file: Path, name: Path) -> None:
    """Create a hard link to the file, or a copy if the file system has no hard links."""
    try:
        name.hardlink_to(file)
    except OSError:
        shutil.copy2(file, name)


def _side_file(path: Path, suffix: str) -> Path:
    """Return the path with a suffix appended to its name."""
    return path.with_name(path.name + suffix)


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
