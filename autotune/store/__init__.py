"""The results database, in SQLite or PostgreSQL. It implements the protocols of `autotune.ports`.

    open_store(url_or_path) -> SqlStore       MemoryStore() -> the same in memory
    open_to_read(url_or_path) -> SqlStore     without creating the store

    sql, in_memory               SqlStore, MemoryStore
    tables, schema, migrations   tables, schema version, upgrades of older databases
    rows, packing, queries       conversion of rows, compact encodings, reads

    connection/                  location (addresses), database (transactions), diagnosis (driver errors), file_systems (shared mounts)
    writes/                      one module for each subject; observed: runs that users started; shared_measurements: calibrations and profiles
    upkeep/                      examination, history_rules, checksums: `autotune store check`
                                 maintenance, restoring: backup, vacuum, restore, upgrade with a dry run
                                 table_files: export as CSV and Parquet; study_folder: a study's folder on a shared file system

SQLAlchemy is imported only when a store is opened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from autotune.errors import NotFoundError

if TYPE_CHECKING:
    from autotune.store.in_memory import MemoryStore
    from autotune.store.sql import SqlStore

__all__ = ["MemoryStore", "SqlStore", "open_store", "open_to_read"]

_MODULE_OF = {"MemoryStore": "autotune.store.in_memory", "SqlStore": "autotune.store.sql"}


def open_store(
    url_or_path: str | os.PathLike[str] | None = None, *, create: bool = True
) -> SqlStore:
    """Return the store at this path or URL; None means `AUTOTUNE_STORE`, or a file in the user's
    data folder.

    A missing store is created, or raises `NotFoundError` with `create=False`. An older store is
    upgraded after a backup. Raises `SpecError` for an invalid address, `StoreVersionError` if a
    newer release wrote the store, `StoreUnavailableError` and `StoreCorruptError`.
    """
    from autotune.store.connection.location import check_exists, find_location
    from autotune.store.sql import SqlStore

    location = find_location(url_or_path)
    if not create:
        check_exists(location)
    return SqlStore(location)


def open_to_read(url_or_path: str | os.PathLike[str] | None = None) -> SqlStore:
    """Return the store at this path or URL, for commands that read. A missing store is empty, and
    is created only to save a calibration or a dry run. Raises what `open_store` raises."""
    from autotune.store.connection.location import find_location
    from autotune.store.in_memory import MissingStore

    try:
        return open_store(url_or_path, create=False)
    except NotFoundError:
        return MissingStore(find_location(url_or_path))


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'autotune.store' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)
