"""The address of a store: a file for SQLite, a server for PostgreSQL.

Accepted are a path, `sqlite:///relative.db`, `sqlite:////absolute.db`, and
`postgresql://user:password@host/database` (also `postgres://` and `postgresql+psycopg://`). This
module opens no connections. The password appears only in `url`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import NotFoundError, SpecError, StoreUnavailableError
from autotune.settings import data_folder, expanded, settings
from autotune.store.connection.file_systems import shared_mount

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
        """Return the address without the password, for messages."""
        if self.is_sqlite and self.path is None:
            return "in memory"
        return str(self.path) if self.path else self.url.render_as_string(hide_password=True)


def find_location(url_or_path: str | os.PathLike[str] | None = None) -> StoreLocation:
    """Return the location of this URL or path; None means `AUTOTUNE_STORE` or the user's default
    store. Raises `SpecError` for an invalid address."""
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


def check_place(path: Path) -> None:
    """Raise `SpecError` or `StoreUnavailableError` if this path cannot be an SQLite file."""
    if path.is_dir():
        raise SpecError(
            f"a store must be a file, but {path} is a folder",
            remedy="specify a file in this folder",
        )
    if (mount := shared_mount(path)) is not None:
        raise SpecError(
            f"an SQLite store must be on a local disk, but {path} is on {mount.folder}, which is {mount.kind}, where locks may fail across machines and the file would be corrupted",
            remedy="use a file on a local disk (--store /var/tmp/autotune.db, or AUTOTUNE_STORE), PostgreSQL for several machines "
            "(postgresql://user@host/database), or `tune --in FOLDER`, which keeps complete copies in FOLDER; to keep the existing results, copy the file while no process uses it",
            field="store",
        )
    folder = path.parent
    if folder != data_folder() and not folder.exists():  # a mistyped path should not create folders
        raise StoreUnavailableError(
            f"the folder {folder} of the store {path.name} does not exist",
            remedy="create the folder, or use another store",
        )


def check_exists(location: StoreLocation) -> None:
    """Raise `NotFoundError` if the file does not exist, or what `check_place` raises if it could
    not be created."""
    if location.path is None or location.path.exists():
        return
    check_place(location.path)
    raise NotFoundError(
        f"there is no store at {location}",
        remedy="specify an existing store with --store or AUTOTUNE_STORE, or restore a backup with `autotune store restore FILE`",
        field="store",
    )


def memory_location() -> StoreLocation:
    """Return the location of an SQLite database in memory."""
    from sqlalchemy import URL

    return StoreLocation(url=URL.create("sqlite+pysqlite", database=":memory:"))
