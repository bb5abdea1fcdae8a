"""Where results live: every acknowledged fact, in SQLite or PostgreSQL, behind `autotune.ports.Store`.

    open_store(url_or_path) -> SqlStore       MemoryStore() -> the same in memory

    place, database, diagnosis    where it is, how it is reached, what its errors mean
    tables, schema, migrations    what it holds, and how older files become newer ones
    submissions, lifecycle, lease, trials, history, records     the writes, one subject each
    rows, packing, queries        values as rows, and what is asked of them
    tokens, audit, measured_once, statistics      what the service and the cost model keep here
    laws, maintenance, export     what every history keeps; check, backup, vacuum, tables for other programs

The import of SQLAlchemy waits until a store is opened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.store.in_memory import MemoryStore
    from autotune.store.sql import SqlStore

__all__ = ["MemoryStore", "SqlStore", "open_store"]

_HOME = {"MemoryStore": "autotune.store.in_memory", "SqlStore": "autotune.store.sql"}


def open_store(url_or_path: str | os.PathLike[str] | None = None) -> SqlStore:
    """The store at that path or URL; None means `AUTOTUNE_STORE`, else a file in the user's data folder.

    A new store is made, an older one is upgraded after a backup copy. Raises `SpecError` for an address that cannot be one,
    `StoreUnavailableError`, `StoreCorruptError` and `StoreVersionError` (written by a newer release).
    """
    from autotune.store.location import find_location
    from autotune.store.sql import SqlStore

    return SqlStore(find_location(url_or_path))


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autotune.store' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
