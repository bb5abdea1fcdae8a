"""Connections and transactions, with the same interface for reads and writes on SQLite and
PostgreSQL.

SQLite
    Readers      never wait, because the database is in WAL mode.
    Durability   Committed data survives the death of any process. Transactions marked durable (submissions, ends of trials, changes of a study's
                 status) also survive a power failure: they are flushed to disk with all earlier commits (`synchronous=FULL`, otherwise `NORMAL`).
    Writers      begin with BEGIN IMMEDIATE, so that a transaction that has begun never fails because of a lock. Threads of one process first wait for a
                 lock of this module, because SQLite's lock is unfair and polls. Transactions take milliseconds; a process that is suspended
                 during one blocks other writers until it continues or dies.

    Main file    After a durable transaction, at most once per second, the WAL is copied into the main file, so that a plain copy of that file is not empty.
    Read-only    A file is opened read-only if this user may not write it, or may not create files in its folder.
    Deleted      A file that was deleted, replaced or emptied while it was open is no longer read or written, because new data would be lost.

PostgreSQL runs at READ COMMITTED. Each write begins with an UPDATE of the study's row, which locks
the study.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import QueuePool, StaticPool

from autotune.errors import StoreUnavailableError, StoreVersionError
from autotune.extras import require_extra
from autotune.spec.texts.as_text import format_duration
from autotune.store.connection.diagnosis import diagnosed
from autotune.store.connection.location import StoreLocation

BUSY_TIMEOUT_S = 30.0
"""maximum time that a writer waits for transactions of other processes, s; each takes
milliseconds"""
CHECKPOINT_S = 1.0
"""minimum interval between copies of the WAL into the main file, s"""
CONNECT_TIMEOUT_S = 5
"""maximum time for a connection to a PostgreSQL server, s"""
TCP_SETTINGS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
"""connection settings that close a connection without a response for 20 s (the last value is in
ms); otherwise an interrupted network blocks a write for 15 minutes"""


def now_us() -> int:
    """Return the current time in microseconds since 1970 UTC."""
    return to_us(datetime.now(UTC))


def to_us(at: datetime) -> int:
    """Return a time in microseconds since 1970 UTC, without rounding; a time without a zone counts
    as UTC."""
    delta = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_us(at_us: int) -> datetime:
    """Return the inverse of `to_us`."""
    return _EPOCH + timedelta(microseconds=at_us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lock(connection: Connection, subject: str) -> None:
    """Block other writers of the subject until the transaction ends. No-op on SQLite, which has one
    writer at a time."""
    if connection.dialect.name == "postgresql":
        digest = hashlib.blake2b(f"autotune {subject}".encode(), digest_size=8).digest()
        connection.execute(_LOCK, {"number": int.from_bytes(digest, "big", signed=True)})


_VERSION = text("SELECT version_num FROM autotune_version")
_LOCK = text("SELECT pg_advisory_xact_lock(:number)")


class Database:
    """An engine with read and write transactions. Threads may share it; forked processes may
    not."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self._write_lock = threading.RLock() if location.is_sqlite else None
        self.is_memory = location.is_sqlite and location.path is None
        """whether the database exists only in the memory of this process"""
        self.is_read_only = location.path is not None and _is_read_only(location.path)
        self._opened: os.stat_result | None = None
        self._version = ""
        self._checkpointed_s = 0.0
        with diagnosed(location):
            self.engine = _make_engine(location, self)
        self._snapshots = (
            self.engine
            if location.is_sqlite
            else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite."""
        return self.location.is_sqlite

    def set_prepared(self, version: str) -> None:
        """Store the version of the prepared schema and the identity of the file; later transactions
        check both."""
        self._version = version
        if self.location.path is not None:
            self._opened = _stat(self.location.path)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction: all reads in the block see the same snapshot. Raises errors of
        the store instead of the driver's."""
        with diagnosed(self.location), self._exclusive(self.is_memory):
            self._check_file()
            with self._snapshots.connect() as connection:
                yield connection

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Connection]:
        """Open a write transaction, which is committed at the end of the block, or rolled back if
        the block raises. Raises errors of the store instead of the driver's.

        After `StoreUnavailableError` it is unknown whether the transaction was committed. Repeating
        it is safe, see `autotune.store.writes.trials`.
        """
        with diagnosed(self.location), self._exclusive(True):
            self._check_file()
            if self.is_read_only:
                raise StoreUnavailableError(
                    f"the store {self.location} cannot be written: it is read-only for this user",
                    remedy="make the file and its folder writable by this user",
                )
            with self.engine.connect() as connection:
                connection = connection.execution_options(
                    autotune_write="FULL" if durable else "NORMAL"
                )
                with connection.begin():
                    self._check_version(connection)
                    yield connection
                if durable and self.location.path is not None:
                    self._checkpoint(connection)

    def _check_file(self) -> None:
        """Raise `StoreUnavailableError` if the file is not the one that was opened."""
        path = self.location.path
        if self._opened is None or path is None:
            return
        current = _stat(path)
        if current is None:
            change = "deleted"
        elif not os.path.samestat(current, self._opened):
            change = "replaced"
        elif not current.st_size:
            change = "emptied"
        else:
            return
        raise StoreUnavailableError(
            f"the store file {path} was {change} while it was open",
            remedy="move the file back, or restore a backup with `autotune store restore FILE`; then start again",
        )

    def _check_version(self, connection: Connection) -> None:
        """Raise `StoreVersionError` if a newer release has upgraded the database since this process
        opened it, because the newer release could not read what this process writes."""
        if self._version and (version := connection.scalar(_VERSION)) != self._version:
            raise StoreVersionError(
                f"the store {self.location} was upgraded to version {version} while this process was writing version {self._version}",
                remedy="end this process and start it again with the newer release",
            )

    def _checkpoint(self, connection: Connection) -> None:
        """Copy the parts of the WAL that no reader uses into the main file; the rest is copied
        later."""
        if time.monotonic() - self._checkpointed_s < CHECKPOINT_S:
            return
        self._checkpointed_s = time.monotonic()
        with contextlib.suppress(sqlite3.OperationalError):
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @contextmanager
    def _exclusive(self, needed: bool) -> Iterator[None]:
        """Hold the lock between threads on SQLite, if it is `needed`. Raises
        `StoreUnavailableError` if it is not acquired in time."""
        if self._write_lock is None or not needed:
            yield
            return
        if not self._write_lock.acquire(timeout=2 * BUSY_TIMEOUT_S):
            raise StoreUnavailableError(
                f"the store {self.location} is busy: other threads have been writing for {format_duration(2 * BUSY_TIMEOUT_S)}",
                remedy="try again",
            )
        try:
            yield
        finally:
            self._write_lock.release()

    def server_now_us(self, connection: Connection) -> int:
        """Return the time for leases, in microseconds since 1970 UTC: by the server's clock on
        PostgreSQL, which is shared by machines, or this machine's clock on SQLite."""
        if self.is_sqlite:
            return now_us()
        return int(
            connection.scalar(
                text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            )
        )

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.engine.dispose()


def _is_read_only(path: Path) -> bool:
    """Return whether this user may not write the file, or not create a WAL next to it."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _stat(path: Path) -> os.stat_result | None:
    """Return device, inode and size of the file; None if it does not exist."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _connect(path: Path, database: Database) -> sqlite3.Connection:
    """Open the file; create it only before the store is prepared."""
    wal = path.with_name(path.name + "-wal")
    writing = "rwc" if database._opened is None else "rw"
    mode = "ro" if database.is_read_only else writing
    if database.is_read_only and not (wal.exists() and wal.stat().st_size):
        mode += "&immutable=1"  # without a WAL there is no writer, and SQLite need not create files next to it
    uri = f"{path.as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, check_same_thread=False, timeout=BUSY_TIMEOUT_S, isolation_level=None
    )


def _make_engine(location: StoreLocation, database: Database) -> Engine:
    """Return the engine with its settings for SQLite or PostgreSQL."""
    if not location.is_sqlite:
        require_extra("postgresql", "a PostgreSQL store")
        engine = create_engine(
            location.url,
            pool_size=8,
            max_overflow=24,
            pool_timeout=BUSY_TIMEOUT_S,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "application_name": "autotune",
                **TCP_SETTINGS,
            },
            hide_parameters=True,
        )
        event.listen(engine, "connect", _limit_waits)
        return engine
    pool: dict[str, Any] = (
        {"poolclass": StaticPool}
        if database.is_memory
        else {
            "poolclass": QueuePool,
            "pool_size": 8,
            "max_overflow": 24,
            "pool_timeout": BUSY_TIMEOUT_S,
        }
    )
    if (path := location.path) is not None:
        pool["creator"] = lambda: _connect(path, database)
    else:
        pool["connect_args"] = {"check_same_thread": False, "isolation_level": None}
    engine = create_engine(location.url, hide_parameters=True, **pool)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        if not database.is_read_only:
            cursor.execute(
                "PRAGMA page_size=8192"
            )  # for a new file, so that a page fits several trials
            if _is_store(cursor):
                _use_wal(cursor)
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA cache_size=-16384")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        synchronous = connection.get_execution_options().get("autotune_write")
        cursor = connection.connection.cursor()
        if synchronous:
            cursor.execute(f"PRAGMA synchronous={synchronous}")
        cursor.execute("BEGIN IMMEDIATE" if synchronous else "BEGIN")
        cursor.close()

    return engine


def _is_store(cursor: Any) -> bool:
    """Return whether the database is empty or a store. A database of another program must not be
    changed; it is rejected later."""
    tables = cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return not tables or ("autotune_version",) in tables


def _use_wal(cursor: Any) -> None:
    """Switch to WAL mode. SQLite does not wait for the required lock, so processes that create the
    same file simultaneously must retry."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _limit_waits(connection: Any, _record: Any) -> None:
    """On PostgreSQL, limit waits for locks, and end transactions of suspended clients."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute(
            f"SET idle_in_transaction_session_timeout = {round(2 * BUSY_TIMEOUT_S * 1000)}"
        )
    connection.commit()
