"""Connections and transactions: one way to read, one way to write, on SQLite and PostgreSQL alike.

SQLite runs in WAL mode, so that readers never wait. What was committed survives the death of any process; transactions marked durable
(submissions, ends of trials, changes of a study's status) are also forced to disk, with all that was committed before them, and
survive a power cut: `synchronous=FULL` for those, `NORMAL` for the rest. Writers begin with BEGIN IMMEDIATE, so that a transaction that has started never fails for a lock; threads of one
process queue on a lock of their own first, because SQLite's is unfair and polls. A process that is frozen inside a transaction, for
milliseconds at a time, keeps others from writing until it wakes or dies. PostgreSQL runs at READ COMMITTED: each write
begins with an UPDATE of the study's row, which is its lock.
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
"""How long a writer waits for other processes' transactions, s; each takes milliseconds."""
CONNECT_TIMEOUT_S = 5
"""How long to wait for a PostgreSQL server to answer, s."""


def now_us() -> int:
    """This moment in microseconds since 1970 UTC."""
    return to_us(datetime.now(UTC))


def to_us(at: datetime) -> int:
    """A moment as microseconds since 1970 UTC, exactly; one without a zone is taken as UTC."""
    delta = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_us(at_us: int) -> datetime:
    """The moment of `to_us`'s number."""
    seconds, microseconds = divmod(at_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lock(connection: Connection, subject: str) -> None:
    """Makes writers of one subject wait for each other until the transaction ends; SQLite has one writer anyhow."""
    if connection.dialect.name == "postgresql":
        digest = hashlib.blake2b(f"autotune {subject}".encode(), digest_size=8).digest()
        connection.execute(_LOCK, {"number": int.from_bytes(digest, "big", signed=True)})


_LOCK = text("SELECT pg_advisory_xact_lock(:number)")


class Database:
    """An engine with the two kinds of transaction. Threads may share it; forked children may not."""

    def __init__(self, place: StoreLocation) -> None:
        self.place = place
        self._turn = threading.RLock() if place.is_sqlite else None
        self._is_memory = place.is_sqlite and place.path is None
        with diagnosed(place):
            self.engine = _make_engine(place, self._is_memory)
        self._snapshots = (
            self.engine if place.is_sqlite else self.engine.execution_options(isolation_level="REPEATABLE READ")
        )

    @property
    def is_sqlite(self) -> bool:
        """Whether the dialect is SQLite's."""
        return self.place.is_sqlite

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent snapshot: all that is read in the block is of the same moment. Raises the store's errors."""
        with diagnosed(self.place), self._turns(self._is_memory), self._snapshots.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Connection]:
        """A transaction that is kept when the block ends and undone when it raises. Raises the store's errors.

        After `StoreUnavailableError` the caller does not know whether it was kept; asking again is safe, see `autotune.store.trials`.
        """
        with diagnosed(self.place), self._turns(True), self.engine.connect() as connection:
            connection = connection.execution_options(autotune_write="FULL" if durable else "NORMAL")
            with connection.begin():
                yield connection

    @contextmanager
    def _turns(self, needed: bool) -> Iterator[None]:
        if self._turn is None or not needed:
            yield
            return
        if not self._turn.acquire(timeout=2 * BUSY_TIMEOUT_S):
            from autotune.errors import StoreUnavailableError

            raise StoreUnavailableError(f"the store {self.place} is busy", remedy="try again")
        try:
            yield
        finally:
            self._turn.release()

    def server_now_us(self, connection: Connection) -> int:
        """The time by which leases run out: the server's where several machines share it, else this machine's."""
        if self.is_sqlite:
            return now_us()
        return int(connection.scalar(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")))

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self.engine.dispose()


def _make_engine(place: StoreLocation, is_memory: bool) -> Engine:
    if not place.is_sqlite:
        require_extra("postgresql", "a PostgreSQL store")
        engine = create_engine(
            place.url,
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
        place.url,
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
    """Switches to WAL. SQLite does not wait for that as it does for other locks: processes that make one file at once try again."""
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
    """On PostgreSQL no wait for a lock is endless, and a client that froze inside a transaction loses it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {round(2 * BUSY_TIMEOUT_S * 1000)}")
    connection.commit()
