"""A store in memory, which lives as long as its process: for tests and experiments. It runs the
same SQL as the others, on SQLite."""

from __future__ import annotations

from autotune.store.connection.location import memory_location
from autotune.store.sql import SqlStore


class MemoryStore(SqlStore):
    """`SqlStore` without a file; threads may share it."""

    def __init__(self) -> None:
        super().__init__(memory_location())
