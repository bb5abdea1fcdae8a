from __future__ import annotations

import math

import pytest

from autotune.spec.texts.as_text import format_bytes


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1.5 * 2**30, "1.5 GiB"),
        (1641.7 * 2**30, "1.6 TiB"),
        (5000 * 2**40, "5000 TiB"),
        (-(2**20), "-1 MiB"),
        (2**30 - 1, "1 GiB"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_sizes_are_written_with_three_digits(size: float | None, words: str) -> None:
    assert format_bytes(size) == words
