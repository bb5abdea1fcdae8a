"""A store in the memory of a process, on SQLite: for tests and experiments, and for commands that
read a store that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from autotune.store.connection.location import StoreLocation, memory_location
from autotune.store.sql import SqlStore


class MemoryStore(SqlStore):
    """A `SqlStore` without a file. Threads may share it."""

    def __init__(self) -> None:
        super().__init__(memory_location())


class MissingStore(MemoryStore):
    """An empty store in place of one that does not exist, for commands that read. Saving a
    calibration or a profile creates the store."""

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self._location = location

    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        """Save the constants in memory, and in the store, which is created."""
        super().save_calibration(cluster, trainer, values)
        with closing(SqlStore(self._location)) as created:
            created.save_calibration(cluster, trainer, values)

    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Save the profile in memory, and in the store, which is created."""
        super().save_profile(fingerprint, values)
        with closing(SqlStore(self._location)) as created:
            created.save_profile(fingerprint, values)
