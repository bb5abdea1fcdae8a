"""What a database driver's error means, in our words: unavailable now, damaged, or refused, and what to do about it.

Drivers' messages name hosts and files but no password; they are cut to one line all the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from autotune.errors import StoreCorruptError, StoreError, StoreUnavailableError
from autotune.store.location import StoreLocation

_SQLITE_REMEDIES = {
    sqlite3.SQLITE_BUSY: ("another process keeps it locked", "end that process, or try again"),
    sqlite3.SQLITE_LOCKED: ("another connection keeps it locked", "try again"),
    sqlite3.SQLITE_FULL: (
        "the disk is full",
        "free some space; what was acknowledged is kept, and work goes on afterwards",
    ),
    sqlite3.SQLITE_IOERR: ("the disk failed or is full", "check the disk's space, quota and health, then try again"),
    sqlite3.SQLITE_READONLY: ("it cannot be written", "make the file and its folder writable for this user"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check that the folder exists and that this user may write there"),
    sqlite3.SQLITE_PERM: ("access is refused", "make the file and its folder writable for this user"),
    sqlite3.SQLITE_NOMEM: ("memory ran out", "free some memory, then try again"),
    sqlite3.SQLITE_PROTOCOL: (
        "its locks do not work",
        "put it on a local disk: SQLite does not work on network file systems",
    ),
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_DAMAGED_REMEDY = "restore a backup (FILE.*.backup, or one made by `autotune store backup`), or name another file"


def diagnose(error: Exception, place: StoreLocation) -> StoreError:
    """The store's error for what the driver raised."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return _diagnose_sqlite(cause, place)
    if isinstance(error, PoolTimeoutError):
        return StoreUnavailableError(
            f"the store {place} has no free connection", remedy="too many requests at once; try again"
        )
    state = str(getattr(cause, "sqlstate", None) or "")
    if state.startswith("28") or "password authentication failed" in str(cause):
        return StoreUnavailableError(
            f"the store {place} refused this user: {_line(cause)}", remedy="check user and password in its address"
        )
    if state.startswith("3D") or ("database" in str(cause) and "does not exist" in str(cause)):
        return StoreUnavailableError(f"the store {place} does not exist", remedy="create it with `createdb`")
    if state.startswith("XX"):
        return StoreCorruptError(
            f"the store {place} is damaged: {_line(cause)}", remedy="restore a backup of the server"
        )
    if state[:2] in ("53", "25"):
        return StoreUnavailableError(
            f"the store {place} cannot be written: {_line(cause)}", remedy="see the server's disk, memory and limits"
        )
    disconnected = isinstance(error, DisconnectionError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )
    if disconnected or state[:2] in ("", "08", "57", "40", "55"):
        return StoreUnavailableError(
            f"the store {place} cannot be reached: {_line(cause)}", remedy="see that the server runs, then try again"
        )
    return StoreError(f"the store {place} failed: {_line(cause)}", remedy="run `autotune store check`")


def _diagnose_sqlite(cause: sqlite3.Error, place: StoreLocation) -> StoreError:
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the low byte is the class, the rest says more
    if code in _DAMAGED:
        return StoreCorruptError(f"the store {place} is damaged: {_line(cause)}", remedy=_DAMAGED_REMEDY)
    if code in _SQLITE_REMEDIES:
        reason, remedy = _SQLITE_REMEDIES[code]
        return StoreUnavailableError(f"the store {place} fails: {reason} ({_line(cause)})", remedy=remedy)
    return StoreError(f"the store {place} failed: {_line(cause)}", remedy="run `autotune store check`")


@contextmanager
def diagnosed(place: StoreLocation) -> Iterator[None]:
    """Turns drivers' errors into the store's; the driver's own stays as the cause for those who debug."""
    try:
        yield
    except (DBAPIError, DisconnectionError, PoolTimeoutError, sqlite3.Error) as error:
        raise diagnose(error, place) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"the store {place} cannot be reached: {error.strerror or error}",
            remedy="check that its folder exists and that this user may write there",
        ) from error


def _line(cause: object) -> str:
    text = str(cause).strip()
    return text.splitlines()[0][:200] if text else type(cause).__name__
