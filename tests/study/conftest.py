from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from autotune.ports import Store
from autotune.store import MemoryStore


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    with closing(MemoryStore()) as memory:
        yield memory
