"""Servers and databases that the tests of the store share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.store import MemoryStore, SqlStore, open_store
from tests.postgresql import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests that leave it running."""
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="session")
def new_database(server: PostgresServer) -> Callable[[], str]:
    """Makes an address of a fresh database with an empty store in it."""
    template = server.new_database()
    open_store(template).close()
    return lambda: server.new_database(template.rpartition("/")[2])


@pytest.fixture(params=["sqlite", "postgresql"])
def address(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The address of a store without studies, on each database."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("new_database")()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    """An empty store in a file."""
    with closing(open_store(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    """An empty store in memory."""
    with closing(MemoryStore()) as opened:
        yield opened
