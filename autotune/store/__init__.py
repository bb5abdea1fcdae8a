"""The results database: every acknowledged fact, in SQLite or PostgreSQL, behind the protocols of
`autotune.ports`.

    open_store(url_or_path) -> SqlStore       MemoryStore() -> the same in memory
    open_to_read(url_or_path) -> SqlStore     without creating the store
    sql, in_memory          the two classes
    tables, schema, migrations   the tables, their version, and the upgrades of older databases
    rows, packing, queries  values as rows, compact encodings, the reads with counts for dashboards

    connection/             location, database, diagnosis: the address, connections and transactions, the meaning of drivers' errors
                            file_systems: mounts that several machines share
    writes/                 one subject each: submissions, lifecycle, locking, trials, decisions, history, best_trials, annotations
                            observed: runs that people started themselves; tokens, measured_once: what the service and the cost model store here
    upkeep/                 laws, examination: the laws of every history, and what `autotune store check` finds; checksums of rows
                            maintenance, restoring: backup, vacuum; restore from a backup, upgrade with a dry run
                            table_files: CSV and Parquet files; study_folder: a study's folder that several machines see

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

_HOME = {"MemoryStore": "autotune.store.in_memory", "SqlStore": "autotune.store.sql"}


def open_store(
    url_or_path: str | os.PathLike[str] | None = None, *, create: bool = True
) -> SqlStore:
    """The store at that path or URL. None means `AUTOTUNE_STORE`, or a file in the user's data
    folder.

    A store that does not exist is created, or with `create=False` raises `NotFoundError`; an older
    one is upgraded after a backup. Raises `SpecError` for an invalid address,
    `StoreUnavailableError`, `StoreCorruptError` and `StoreVersionError` (written by a newer
    release).
    """
    from autotune.store.connection.location import check_exists, find_location
    from autotune.store.sql import SqlStore

    location = find_location(url_or_path)
    if not create:
        check_exists(location)
    return SqlStore(location)


def open_to_read(url_or_path: str | os.PathLike[str] | None = None) -> SqlStore:
    """The store at that path or URL, for a command that reads. A store that does not exist is empty,
    and is created only to keep a calibration or a dry run. Raises what `open_store` raises."""
    from autotune.store.connection.location import find_location
    from autotune.store.in_memory import UnmadeStore

    try:
        return open_store(url_or_path, create=False)
    except NotFoundError:
        return UnmadeStore(find_location(url_or_path))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autotune.store' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
