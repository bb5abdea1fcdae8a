"""Options whose numbers have units, as people write them: `--train-tokens 15T`, `--max-wall-s
10min`. A number without a unit is in the base unit.

Spans of time as options take them: a number with a unit, such as 90d or 12h.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from autotune.errors import SpecError


def time_s(*, least: float = 0.0) -> Callable[[str], float]:
    """Reads a time as seconds."""
    return _reader("TIME", least)


def tokens(*, least: float = 1.0) -> Callable[[str], float]:
    """Reads a number of tokens."""
    return _reader("TOKENS", least)


def sequence_tokens(value: str) -> int:
    """Reads the length of a sequence in tokens."""
    length = _reader("SEQUENCE", 1.0)(value)
    if not length.is_integer():
        raise typer.BadParameter(f"must be a whole number of tokens, but is {value}")
    return int(length)


def memory_gib(*, least: float) -> Callable[[str], float]:
    """Reads a size in GiB: `16`, `16GiB` or `17GB`."""
    read = _reader("BYTES", least)

    def size(value: str) -> float:
        text = str(value)
        return read(text if text[-1:].isalpha() else f"{text}GiB", shown_per=2**30)

    return size


def _reader(kind: str, least: float) -> Callable[..., float]:
    def read(value: str, *, shown_per: int = 1) -> float:
        from autotune.spec.texts import quantity

        try:
            number = getattr(quantity, kind).parse(str(value)) / shown_per
        except SpecError as error:
            raise typer.BadParameter(str(error)) from None
        if number < least:
            raise typer.BadParameter(f"must be at least {least:g}, but is {value}")
        return float(number)

    return read


def time_span_s(text: str, option: str) -> float:
    """The span in seconds. Raises `SpecError` for text without a unit, and for what is no time."""
    from autotune.spec.texts.quantity import TIME

    if not text[-1:].isalpha():
        raise SpecError(
            f"a time must have a unit, but {text!r} has none",
            remedy="add a unit, e.g. 90d or 12h",
            field=option,
        )
    try:
        return TIME.parse(text)
    except SpecError as error:
        raise SpecError(error.message, remedy=error.remedy, field=option) from None
