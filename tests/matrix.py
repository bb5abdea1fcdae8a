"""Parameters of which every round runs some, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """The values of one parameter, or rows of several, of which those in `always` are run every time. Raises `ValueError` where one of these is no value."""
    values = list(values)
    if strange := [value for value in always if value not in values]:
        raise ValueError(f"{strange} are no parameters here")
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=[] if value in always else [pytest.mark.thorough]
        )
        for value in values
    ]
