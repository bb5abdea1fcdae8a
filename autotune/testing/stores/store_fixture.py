"""The one thing that a store's tests must give: a fresh store."""

from __future__ import annotations

from typing import Any

import pytest


class StoreFixture:
    """The base of the suites."""

    @pytest.fixture
    def store(self) -> Any:
        """A fresh, empty store; to be given by the subclass."""
        raise NotImplementedError("define a `store` fixture")
