"""Byte counts as text."""

from __future__ import annotations

import math


def format_bytes(value: float | None) -> str:
    """`1.5 GiB`, with three significant digits; `-` when unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    size, sign = abs(value), "-" if value < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1023.5 or unit == "TiB":
            break
        size /= 1024
    return f"{sign}{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{sign}{size:.3g} {unit}"
