"""A store in memory, which lives as long as its process: for tests and experiments, and in the
place of a store that nobody has written to. It runs the same SQL as the others, on SQLite."""

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
    """A store that does not exist, as commands that read see it: it is empty. A calibration or a dry
    run that is kept in it creates it."""

    def __init__(self, location: StoreLocation) -> None:
        super().__init__()
        self._location = location

    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        """Stores the constants, also in the store that is created for them."""
        super().save_calibration(cluster, trainer, values)
        with closing(SqlStore(self._location)) as made:
            made.save_calibration(cluster, trainer, values)

    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Stores the profile, also in the store that is created for it."""
        super().save_profile(fingerprint, values)
        with closing(SqlStore(self._location)) as made:
            made.save_profile(fingerprint, values)
