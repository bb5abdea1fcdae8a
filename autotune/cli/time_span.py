"""Spans of time as options take them: a number with a unit, such as 90d or 12h."""

from __future__ import annotations

from autotune.errors import SpecError
from autotune.spec.quantity import TIME


def time_span_s(text: str, option: str) -> float:
    """The span in seconds. Raises `SpecError` for text without a unit, and for what is no time."""
    if not text[-1:].isalpha():
        raise SpecError(f"a time needs a unit, but is {text!r}", remedy="write it as in 90d or 12h", field=option)
    try:
        return TIME.parse(text)
    except SpecError as error:
        raise SpecError(error.message, remedy=error.remedy, field=option) from None
