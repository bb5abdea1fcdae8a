"""Common parts of figures: opening tag, text, and round tick values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from html import escape

WIDTH = 430.0
HEIGHT = 250.0
"""size of figures with axes, user units"""
LEFT, RIGHT, TOP, BOTTOM = 74.0, 16.0, 24.0, 46.0
"""margins of figures with axes, user units"""
LETTER = 8.6
"""width of a letter, user units, in the larger type of narrow pages"""

Format = Callable[[float], str]

_TIMES_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    21600,
    43200,
    86400,
)
"""distances of ticks on a time axis, seconds"""


def opening_tag(width: float, height: float, description: str) -> str:
    """Return the opening tag of a figure. `description`: alternative text for screen readers."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(description)}">'


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return text at a position. `kind`: its class, such as tick, name, row, cell or key."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten) from `low` to `high`, roughly `about`
    of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return _multiples(low, high, step)


def time_ticks(low_s: float, high_s: float, about: int = 5) -> list[float]:
    """Return round numbers of seconds, minutes, hours or days; arguments in seconds."""
    raw = (high_s - low_s) / max(1, about)
    if not math.isfinite(raw) or raw < _TIMES_S[0]:
        return ticks(low_s, high_s, about)
    step = next((t for t in _TIMES_S if t >= raw), None)
    return (
        _multiples(low_s, high_s, float(step))
        if step
        else [86400.0 * d for d in ticks(low_s / 86400, high_s / 86400, about)]
    )


def byte_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers of KiB, MiB, GiB or TiB, in bytes."""
    unit = 2.0 ** (10 * math.floor(math.log2(max(high, 1.0)) / 10))
    return [unit * tick for tick in ticks(low / unit, high / unit, about)]


def tick_labels(values: Sequence[float], number: Format) -> list[str]:
    """Return the labels of an axis's ticks: zero without a unit, all others in the unit of the
    largest value, e.g. 0.5 s and 1.5 s."""
    largest = max(values, default=0.0)
    match = re.fullmatch(r"([\d.]+)( ?[A-Za-z]+)", number(largest))
    if match is None or largest <= 0:
        return [number(value) if value else "0" for value in values]
    unit_size, unit = largest / float(match[1]), match[2]
    return [f"{value / unit_size:.4g}{unit}" if value else "0" for value in values]


def shortened(words: str, most: int) -> str:
    """Return the text, cut after `most` characters."""
    return words if len(words) <= most else words[: most - 1] + "…"


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
