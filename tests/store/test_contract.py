"""Every store keeps the same laws: in memory, in a file, on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.store import MemoryStore, SqlStore, open_store
from autotune.testing.stores import ServiceStoreContract, StoreContract


@pytest.mark.thorough
class TestMemoryStore(StoreContract, ServiceStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[SqlStore]:
        with closing(MemoryStore()) as store:
            yield store


class TestSqliteStore(StoreContract, ServiceStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqlStore]:
        with closing(open_store(tmp_path / "store.db")) as store:
            yield store


class TestPostgresStore(StoreContract, ServiceStoreContract):
    @pytest.fixture
    def store(self, new_database: Callable[[], str]) -> Iterator[SqlStore]:
        with closing(open_store(new_database())) as store:
            yield store
