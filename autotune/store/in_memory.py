"""A store in memory, which lives as long as its process: for tests and experiments, and for reading
a store that does not exist yet. It runs the same SQL as the others, on SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from autotune.store.connection.location import StoreLocation, memory_location
from autotune.store.sql import SqlStore


class MemoryStore(SqlStore):
    """`SqlStore` without a file; threads may share it."""

    def __init__(self) -> None:
        super().__init__(memory_location())


class UnmadeStore(MemoryStore):
    """A store that does not exist yet, for commands that read: it is empty. Keeping a calibration or
    a dry run creates it."""

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self._location = location

    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        """Stores the constants here, and in the store that this creates."""
        super().save_calibration(cluster, trainer, values)
        with closing(SqlStore(self._location)) as made:
            made.save_calibration(cluster, trainer, values)

    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Stores the profile here, and in the store that this creates."""
        super().save_profile(fingerprint, values)
        with closing(SqlStore(self._location)) as made:
            made.save_profile(fingerprint, values)
