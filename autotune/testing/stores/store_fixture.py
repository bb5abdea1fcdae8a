"""The fixture that tests of a store must provide: an empty store."""

from __future__ import annotations

from typing import Any

import pytest


class StoreFixture:
    """Base of the contract suites."""

    @pytest.fixture
    def store(self) -> Any:
        """A new, empty store; subclasses must override it."""
        raise NotImplementedError("define a `store` fixture")
