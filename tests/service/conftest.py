"""Services that several tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.service.options import ServiceOptions
from autotune.store import SqlStore, open_store
from tests.service.running import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Runs no studies; callers on loopback need no token."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Runs no studies; everybody needs a token."""
    options = ServiceOptions(port=0, require_token=True, max_body_bytes=20_000, body_timeout_s=4.0)
    with Service(tmp_path_factory.mktemp("guarded"), options=options) as running:
        yield running


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Runs studies as child processes."""
    options = ServiceOptions(port=0, max_studies=2)
    with Service(tmp_path_factory.mktemp("tuning"), options=options, supervised=True) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_store(tmp_path / "results.db")) as opened:
        yield opened
