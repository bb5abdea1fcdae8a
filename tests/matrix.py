"""Parameters and examples of which every round runs some, and `make test-all` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

_share = [0.3]
"""of the examples of a law that this round draws"""


def examples(number: int) -> int:
    """How many examples of a law this round draws: all `number` of them in `make test-all`, some in
    `make test`."""
    return max(1, round(_share[0] * number))


def draw_all_examples() -> None:
    """To be called before any module of tests is imported."""
    _share[0] = 1.0


def sampled(values: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """The values of one parameter, or rows of several, of which those in `always` are run every
    time. Raises `ValueError` where one of these is no value."""
    values = list(values)
    if strange := [value for value in always if value not in values]:
        raise ValueError(f"{strange} are no parameters here")
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if value in always else [pytest.mark.thorough],
        )
        for value in values
    ]
