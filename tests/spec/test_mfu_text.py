"""MFU as text: a share of a peak; more than all of it means that the peak is too low."""

from __future__ import annotations

import math

import pytest

from autotune.spec.texts.as_text import UNKNOWN, format_mfu


@pytest.mark.parametrize("share", [None, math.nan, -0.1, math.inf])
def test_an_impossible_mfu_is_unknown(share: float | None) -> None:
    assert format_mfu(share) == UNKNOWN


@pytest.mark.parametrize("share", [1.001, 3.166])
def test_an_mfu_above_one_is_shown_as_such(share: float) -> None:
    assert format_mfu(share) == ">100%"


def test_an_mfu_is_a_percentage() -> None:
    assert [format_mfu(share) for share in (0.0, 0.4301, 1.0)] == ["0.0%", "43.0%", "100.0%"]
    assert format_mfu(0.306, 0) == "31%"
