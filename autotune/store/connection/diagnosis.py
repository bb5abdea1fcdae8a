"""Conversion of database drivers' errors to errors of the store, with a remedy for each.

Drivers' messages contain hosts and files but no passwords. Only their first line is used.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from autotune.errors import SpecError, StoreCorruptError, StoreError, StoreUnavailableError
from autotune.store.connection.location import StoreLocation

_SQLITE_REMEDIES = {
    sqlite3.SQLITE_BUSY: ("another process has locked it", "end that process, or try again"),
    sqlite3.SQLITE_LOCKED: ("another connection has locked it", "try again"),
    sqlite3.SQLITE_FULL: (
        "the disk is full",
        "free some space; nothing acknowledged is lost, and running studies continue afterwards",
    ),
    sqlite3.SQLITE_IOERR: (
        "the disk failed or is full",
        "check the disk's space, quota and health, then try again",
    ),
    sqlite3.SQLITE_READONLY: (
        "it is read-only",
        "make the file and its folder writable by this user",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "check that the folder exists and that this user can write to it",
    ),
    sqlite3.SQLITE_PERM: (
        "this user has no access",
        "make the file and its folder writable by this user",
    ),
    sqlite3.SQLITE_NOMEM: ("memory ran out", "free some memory, then try again"),
    sqlite3.SQLITE_PROTOCOL: (
        "its locks do not work",
        "move the store to a local disk; SQLite does not work on network file systems",
    ),
}
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""SQLite's primary error codes for a damaged file"""
_DAMAGED_REMEDY = "restore a backup (FILE.*.backup, or one made by `autotune store backup`) with `autotune store restore`, or use another file"


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_NO_CONNECTION_LEFT = (
    "too many clients already",
    "remaining connection slots are reserved",
    "too many connections for",
)
"""messages of a PostgreSQL server without free connections; the driver reports no SQLSTATE for
them"""


def diagnose(error: Exception, location: StoreLocation) -> StoreError:
    """Return the store's error for an error of the driver."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return _diagnose_sqlite(cause, location)
    if isinstance(error, PoolTimeoutError):
        return StoreUnavailableError(
            f"the store {location} has no free connection, because too many requests came at once",
            remedy="try again",
        )
    state = str(getattr(cause, "sqlstate", None) or "")
    if state.startswith("28") or "password authentication failed" in str(cause):
        return StoreUnavailableError(
            f"the store {location} rejected this user: {_line(cause)}",
            remedy="check the user and the password in the store's address",
        )
    if state.startswith("3D") or ("database" in str(cause) and "does not exist" in str(cause)):
        return StoreUnavailableError(
            f"the store {location} does not exist", remedy="create the database with `createdb`"
        )
    if state.startswith("XX"):
        return StoreCorruptError(
            f"the store {location} is damaged: {_line(cause)}",
            remedy="restore a backup of the server",
        )
    if state == "53300" or any(words in str(cause) for words in _NO_CONNECTION_LEFT):
        return StoreUnavailableError(
            f"the store {location} is out of connections: {_line(cause)}",
            remedy="try again later, or raise the server's max_connections (or the limit of this user or database)",
        )
    if state[:2] in ("53", "25"):
        return StoreUnavailableError(
            f"the store {location} cannot be written: {_line(cause)}",
            remedy="check the server's disk, memory and limits",
        )
    disconnected = isinstance(error, DisconnectionError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )
    if disconnected or state[:2] in ("", "08", "57", "40", "55"):
        return StoreUnavailableError(
            f"the store {location} cannot be reached: {_line(cause)}",
            remedy="check that the server is running, then try again",
        )
    return StoreError(
        f"the store {location} failed: {_line(cause)}", remedy="run `autotune store check`"
    )


def _diagnose_sqlite(cause: sqlite3.Error, location: StoreLocation) -> StoreError:
    """Return the store's error for an error of SQLite."""
    # the low byte of an extended error code is the primary code
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code in DAMAGED:
        return StoreCorruptError(
            f"the store {location} is damaged: {_line(cause)}", remedy=_DAMAGED_REMEDY
        )
    if code in _SQLITE_REMEDIES:
        reason, remedy = _SQLITE_REMEDIES[code]
        return StoreUnavailableError(
            f"the store {location} cannot be used: {reason} ({_line(cause)})", remedy=remedy
        )
    return StoreError(
        f"the store {location} failed: {_line(cause)}", remedy="run `autotune store check`"
    )


@contextmanager
def diagnosed(location: StoreLocation) -> Iterator[None]:
    """Convert errors of the driver in the block to errors of the store, with the driver's as
    cause."""
    try:
        yield
    except (DBAPIError, DisconnectionError, PoolTimeoutError, sqlite3.Error) as error:
        raise diagnose(error, location) from error
    except OSError as error:
        raise StoreUnavailableError(
            f"the store {location} cannot be reached: {error.strerror or error}",
            remedy="check that the store's folder exists and is writable by this user",
        ) from error


@contextmanager
def file_errors(target: Path, field: str) -> Iterator[None]:
    """Convert `OSError` in the block to `StoreUnavailableError` if the disk fails or is full, else
    to `SpecError` of the parameter `field`, which is the path `target`."""
    try:
        yield
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}"
        if error.errno in _DISK:
            raise StoreUnavailableError(
                message, remedy="check the disk's space, quota and health, then try again"
            ) from error
        raise SpecError(
            message,
            remedy="use another location, in an existing folder writable by this user",
            field=field,
        ) from error


def _line(cause: object) -> str:
    """Return the first line of the driver's message, at most 200 characters."""
    text = str(cause).strip()
    return text.splitlines()[0][:200] if text else type(cause).__name__
