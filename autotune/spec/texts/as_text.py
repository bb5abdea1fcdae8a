"""Values as text: flags, sizes, counts, durations, and speedups with their interval."""

from __future__ import annotations

import math
import re
from typing import Any

UNKNOWN = "-"
"""text for an unknown value"""


def value_word(value: Any) -> str:
    """Return a value as text; flags as true and false, as in YAML and JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def notes_of(*cases: tuple[object, str]) -> tuple[str, ...]:
    """Return the notes whose condition is true. `cases`: (condition, note)."""
    return tuple(note for condition, note in cases if condition)


def number_of(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 step`, `1,024 steps`. `many`: the plural, if it is not
    `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def format_bytes(value: float | None) -> str:
    """Return `1.5 GiB`, with three significant digits; `-` if unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size, sign = abs(value), "-" if value < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1023.5 or unit == "TiB":
            break
        size /= 1024
    return (
        f"{sign}{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{sign}{size:.3g} {unit}"
    )


def format_count(value: float | None) -> str:
    """Return `1.23k`, `45.6M`: three significant digits and an SI prefix; `-` if unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size = abs(value)
    for unit in ("", "k", "M", "G", "T"):
        if size < 999.5 or unit == "T":
            return (
                ("-" if value < 0 else "")
                + (f"{size:.3g}" if size < 999.5 else f"{size:.0f}")
                + unit
            )
        size /= 1000
    raise AssertionError("the loop always returns at the last unit")


_ONE_NUMBER = re.compile(r"(-?)(\d+)\.?(\d*)([kMGT]?| .?i?B| .?s)")


def in_column(number: str, *, digits: int = 3) -> str:
    """Return a number padded with zeros to this many significant digits, for a column: `2.00k` next
    to `1.99k`. Other texts are unchanged."""
    match = _ONE_NUMBER.fullmatch(number)
    if match is None or not (known := f"{match[2]}{match[3]}".lstrip("0")) or len(known) >= digits:
        return number
    return f"{match[1]}{match[2]}.{match[3]}{'0' * (digits - len(known))}{match[4]}"


def bytes_cell(value: float | None) -> str:
    """Return `format_bytes` for a column: `10.0 GiB`."""
    return in_column(format_bytes(value))


def count_cell(value: float | None) -> str:
    """Return `format_count` for a column: `2.00k`."""
    return in_column(format_count(value))


def duration_cell(value: float | None) -> str:
    """Return `format_duration` for a column: `5.40 s`."""
    return in_column(format_duration(value))


def two_digits(value: float) -> str:
    """Return a number with two significant digits: 0.42, 6.0, 420, 1.3M."""
    rounded = float(f"{value:.2g}")
    text = format_count(rounded) if value >= 1e4 else f"{rounded:,.15g}"
    return in_column(text, digits=2)


def format_duration(seconds: float | None) -> str:
    """Return `850 us`, `12.3 ms`, `4.21 s`, `3m 05s`, `2h 10m`; `-` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 9.995e-4:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else "1 s"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def format_span(seconds: float | None) -> str:
    """Return a duration in whole seconds: `<1 s`, `47 s`, `1m 07s`, `2h 10m`; `-` if unknown."""
    if seconds is not None and 0 < seconds < 1:
        return "<1 s"
    return format_duration(None if seconds is None else float(f"{seconds:.0f}"))


def format_mfu(share: float | None, digits: int = 1) -> str:
    """Return `43.0%`; `-` if unknown; `>100%` if the stated peak is too low, as it may be for a
    CPU."""
    if share is None or not 0 <= share < math.inf:
        return UNKNOWN
    return f"{share:.{digits}%}" if share <= 1 else ">100%"


def format_gain(factor: float) -> str:
    """Return `+36%`, or `3.3x the speed` for a factor of two or more."""
    return f"{factor:.3g}x the speed" if factor >= 2 else f"{factor - 1:+.0%}"


DEFAULT_IS_BEST = "no speedup; the baseline is the best"


def format_speedup(
    speedup: float,
    low: float | None,
    high: float | None,
    *,
    times: str = "x",
    over: str = "",
    is_open: bool = False,
) -> str:
    """Return `1.18x (95% CI 1.14-1.22)`; without an interval `1.18x`, for a running study `1.18x
    (not confirmed yet)`; `DEFAULT_IS_BEST` if the baseline is the best.

    `times`: text after the number. `over`: text at the end. `is_open`: whether the study is
    running, so that a best baseline is only the best so far.
    """
    is_unconfirmed = is_open and (low is None or high is None)
    if speedup == 1.0 and (is_unconfirmed or low == high == 1.0):
        return DEFAULT_IS_BEST + (" so far" if is_open else "")
    interval = f" (95% CI {low:.2f}-{high:.2f})" if low is not None and high is not None else ""
    return f"{speedup:.2f}{times}{' (not confirmed yet)' if is_unconfirmed else interval}{over}"
