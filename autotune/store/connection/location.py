"""The location of a store: a file for SQLite, a server for PostgreSQL.

Accepted are a path, `sqlite:///relative.db`, `sqlite:////absolute.db`, and
`postgresql://user:password@host/database` (also `postgres://` and `postgresql+psycopg://`). This
module reads only the user's settings and connects to nothing. The password appears only in `url`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import NotFoundError, SpecError
from autotune.settings import expanded, settings

if TYPE_CHECKING:
    from sqlalchemy import URL

REMEDY = "use a file's path, sqlite:////absolute/path.db or postgresql://user@host/database"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """The address of a store."""

    url: URL
    """URL for SQLAlchemy, with driver and password"""
    path: Path | None = None
    """the file of SQLite on disk; None otherwise"""

    @property
    def is_sqlite(self) -> bool:
        """Whether the store is SQLite, on disk or in memory."""
        return self.url.get_backend_name() == "sqlite"

    def __str__(self) -> str:
        """The address without the password, for messages."""
        if self.is_sqlite and self.path is None:
            return "in memory"
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def find_location(url_or_path: str | os.PathLike[str] | None = None) -> StoreLocation:
    """The location of that URL or path; None means the user's own store. Raises `SpecError` for an
    invalid address."""
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    text = os.fspath(url_or_path) if url_or_path is not None else settings().store
    if not text.strip() or "\0" in text:
        raise SpecError(
            "the address of a store must not be empty or contain a zero byte",
            remedy=REMEDY,
            field="store",
        )
    if "://" not in text:
        path = expanded(text, field="store").absolute()
        return StoreLocation(url=URL.create("sqlite+pysqlite", database=str(path)), path=path)
    scheme = text.partition("://")[0].lower()
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise SpecError(
            f"the {scheme} address of the store is malformed", remedy=REMEDY, field="store"
        ) from None
    backend = {"postgres": "postgresql"}.get(url.get_backend_name(), url.get_backend_name())
    driver = url.drivername.partition("+")[2]
    if backend == "sqlite" and driver in ("", "pysqlite"):
        if url.host or url.query:
            raise SpecError(
                "an SQLite address must have no host and no options", remedy=REMEDY, field="store"
            )
        if url.database in (None, "", ":memory:"):
            raise SpecError(
                "an in-memory store would be lost when the process ends",
                remedy=f"{REMEDY}; tests use autotune.store.MemoryStore",
                field="store",
            )
        path = expanded(str(url.database), field="store").absolute()
        return StoreLocation(url=URL.create("sqlite+pysqlite", database=str(path)), path=path)
    if backend == "postgresql" and driver in ("", "psycopg"):
        if not url.database:
            raise SpecError(
                "the address of a PostgreSQL store must contain a database name",
                remedy=REMEDY,
                field="store",
            )
        return StoreLocation(url=url.set(drivername="postgresql+psycopg"))
    raise SpecError(
        f"a store must be SQLite or PostgreSQL (psycopg), but is {url.drivername}",
        remedy=REMEDY,
        field="store",
    )


def check_exists(location: StoreLocation) -> None:
    """Raises `NotFoundError` for a file that does not exist. A missing folder may be a mount that
    is unavailable: opening the store says so."""
    if location.path is None or location.path.exists() or not location.path.parent.exists():
        return
    raise NotFoundError(
        f"there is no store at {location}",
        remedy="specify an existing store with --store or AUTOTUNE_STORE, or restore a backup with `autotune store restore FILE`",
        field="store",
    )


def memory_location() -> StoreLocation:
    """SQLite in this process's memory."""
    from sqlalchemy import URL

    return StoreLocation(url=URL.create("sqlite+pysqlite", database=":memory:"))
