"""Counts as text."""

from __future__ import annotations

import math


def format_count(value: float | None) -> str:
    """`1.23k`, `45.6M`: three significant digits and an SI prefix; `-` when unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    for unit in ("", "k", "M", "G", "T"):
        if size < 999.5 or unit == "T":
            return ("-" if value < 0 else "") + (f"{size:.3g}" if size < 999.5 else f"{size:.0f}") + unit
        size /= 1000
    raise AssertionError("the last unit always answers")
