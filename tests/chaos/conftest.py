"""Databases for schedules: files, small disks, and servers that may be stopped at any time."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from autotune.store import SqlStore, open_store
from tests.chaos.arena import Locked, Served, SqliteFile, Where
from tests.chaos.schedule import Schedule
from tests.postgresql import PostgresServer, postgres_server
from tests.ray_roles import AUTH

Place = Callable[[Schedule], Where]


@pytest.fixture(scope="package", autouse=True)
def auth() -> Iterator[None]:
    """One token for all clusters: controllers are forked from a server, which keeps the environment
    that it was started in."""
    with mock.patch.dict(os.environ, AUTH):
        yield


@pytest.fixture
def files(tmp_path: Path) -> Callable[[int], list[Place]]:
    """So many places, each with a fresh SQLite file for every schedule."""
    template, numbers = tmp_path / "template.db", itertools.count()
    open_store(template).close()

    def fresh(_: Schedule) -> Where:
        return SqliteFile(Path(shutil.copy(template, tmp_path / f"{next(numbers)}.db")))

    return lambda count: [fresh] * count


@pytest.fixture
def servers() -> Iterator[Callable[[int], list[Place]]]:
    """So many places, each with a PostgreSQL server of its own and a fresh database for every
    schedule."""
    with _places(Served) as places:
        yield places


@pytest.fixture
def locked_servers() -> Iterator[Callable[[int], list[Place]]]:
    """The same; what takes the database away is another client's lock."""
    with _places(Locked) as places:
        yield places


@contextlib.contextmanager
def _places(kind: type[Served]) -> Iterator[Callable[[int], list[Place]]]:
    with contextlib.ExitStack() as stack:

        def place() -> Place:
            server = stack.enter_context(postgres_server())
            template = server.new_database()
            open_store(template).close()
            return lambda _: fresh(server, template.rpartition("/")[2])

        def fresh(server: PostgresServer, template: str) -> Where:
            return kind(server, server.new_database(template))

        yield lambda count: [place() for _ in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    """An empty store in a file."""
    with contextlib.closing(open_store(tmp_path / "store.db")) as opened:
        yield opened
