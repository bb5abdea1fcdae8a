"""A browser and services that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autotune.service.options import ServiceOptions
from tests.browser.chromium import chromium
from tests.service.running import Service


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def tuning(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Runs studies as child processes; everybody needs a token."""
    options = ServiceOptions(port=0, max_studies=2, require_token=True)
    with Service(tmp_path_factory.mktemp("tuning"), options=options, supervised=True) as running:
        yield running
