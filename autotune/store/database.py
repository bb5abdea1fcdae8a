"""Connections and transactions: one way to read and one way to write, on SQLite and PostgreSQL alike.

SQLite
    Readers      never wait: the database is in WAL mode.
    Durability   Committed data survives the death of any process. Transactions marked durable (submissions, ends of trials, changes of a study's
                 status) also survive a power cut: they are forced to disk with all commits before them (`synchronous=FULL`, otherwise `NORMAL`).
    Writers      begin with BEGIN IMMEDIATE, so that a transaction that has begun never fails for a lock. Threads of one process first queue on a
                 lock of this module, because SQLite's own lock is unfair and polls. Transactions take milliseconds; a process that is frozen
                 inside one keeps others from writing until it continues or dies.

PostgreSQL runs at READ COMMITTED. Each write begins with an UPDATE of the study's row, which serves as the study's lock.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import QueuePool, StaticPool

from autotune.extras import require_extra
from autotune.store.diagnosis import diagnosed
from autotune.store.location import StoreLocation

BUSY_TIMEOUT_S = 30.0
"""Time that a writer waits for transactions of other processes, s; each takes milliseconds."""
CONNECT_TIMEOUT_S = 5
"""Time to wait for a PostgreSQL server to accept a connection, s."""


def now_us() -> int:
    """The present time in microseconds since 1970 UTC."""
    return to_us(datetime.now(UTC))


def to_us(at: datetime) -> int:
    """A time as microseconds since 1970 UTC, exactly; a time without a zone counts as UTC."""
    delta = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_us(at_us: int) -> datetime:
    """The inverse of `to_us`."""
    seconds, microseconds = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lock(connection: Connection, subject: str) -> None:
    """Makes other writers of the subject wait until the transaction ends. Not needed on SQLite, which has one writer at a time."""
    if connection.dialect.name == "postgresql":
        digest = hashlib.blake2b(f"autotune {subject}".encode(), digest_size=8).digest()
        connection.execute(_LOCK, {"number": int.from_bytes(digest, "big", signed=True)})


_LOCK = text("SELECT pg_advisory_xact_lock(:number)")


class Database:
    """An engine with two kinds of transactions. Threads may share it; forked children may not."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location
        self._write_lock = threading.RLock() if location.is_sqlite else None
        self._is_memory = location.is_sqlite and location.path is None
        with diagnosed(location):
            self.engine = _make_engine(location, self._is_memory)
        self._snapshots = (
            self.engine if location.is_sqlite else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is SQLite."""
        return self.location.is_sqlite

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot: all reads in the block see the same state. Raises the store's errors."""
        with diagnosed(self.location), self._exclusive(self._is_memory), self._snapshots.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Connection]:
        """A transaction that is committed when the block ends and rolled back when it raises. Raises the store's errors.

        After `StoreUnavailableError` the caller does not know whether it was committed. Writing again is safe, see `autotune.store.trials`.
        """
        with diagnosed(self.location), self._exclusive(True), self.engine.connect() as connection:
            connection = connection.execution_options(autotune_write="FULL" if durable else "NORMAL")
            with connection.begin():
                yield connection

    @contextmanager
    def _exclusive(self, needed: bool) -> Iterator[None]:
        if self._write_lock is None or not needed:
            yield
            return
        if not self._write_lock.acquire(timeout=2 * BUSY_TIMEOUT_S):
            from autotune.errors import StoreUnavailableError

            raise StoreUnavailableError(
                f"the store {self.location} is busy: other threads have been writing for {2 * BUSY_TIMEOUT_S:.0f} s",
                remedy="try again",
            )
        try:
            yield
        finally:
            self._write_lock.release()

    def server_now_us(self, connection: Connection) -> int:
        """The clock for leases, in microseconds since 1970 UTC: the server's clock on PostgreSQL, which machines share; this machine's on SQLite."""
        if self.is_sqlite:
            return now_us()
        return int(connection.scalar(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")))

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self.engine.dispose()


def _make_engine(location: StoreLocation, is_memory: bool) -> Engine:
    if not location.is_sqlite:
        require_extra("postgresql", "a PostgreSQL store")
        engine = create_engine(
            location.url,
            pool_size=8,
            max_overflow=24,
            pool_timeout=BUSY_TIMEOUT_S,
            pool_pre_ping=True,
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "autotune"},
            hide_parameters=True,
        )
        event.listen(engine, "connect", _limit_waits)
        return engine
    pool: dict[str, Any] = (
        {"poolclass": StaticPool}
        if is_memory
        else {"poolclass": QueuePool, "pool_size": 8, "max_overflow": 24, "pool_timeout": BUSY_TIMEOUT_S}
    )
    engine = create_engine(
        location.url,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S, "isolation_level": None},
        hide_parameters=True,
        **pool,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA page_size=8192")  # of a new file: fits several trials on a page
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


def _use_wal(cursor: Any) -> None:
    """Switches to WAL mode. For this lock SQLite does not wait by itself, so that processes that create one file at once have to try again."""
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
    """On PostgreSQL, limits waits for locks, and ends transactions of clients that froze."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {round(2 * BUSY_TIMEOUT_S * 1000)}")
    connection.commit()
