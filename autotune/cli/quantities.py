"""Parsers for options with units: `--train-tokens 15T`, `--max-wall-s 10min`. A number without a
unit is in the base unit, except for `time_span_s`, which requires a unit.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from autotune.errors import SpecError


def time_s(*, least: float = 0.0) -> Callable[[str], float]:
    """Return a parser for times, in seconds."""
    return _parser("TIME", least)


def tokens(value: str) -> float:
    """Parse a number of tokens."""
    return _parser("TOKENS", 1.0)(value)


def sequence_tokens(value: str) -> int:
    """Parse a sequence length in tokens."""
    length = _parser("SEQUENCE", 1.0)(value)
    if not length.is_integer():
        raise typer.BadParameter(f"must be a whole number of tokens, but is {value}")
    return int(length)


def memory_gib(*, least: float) -> Callable[[str], float]:
    """Return a parser for sizes in GiB: `16`, `16GiB` or `17GB`."""
    parse = _parser("BYTES", least)

    def parse_size(value: str) -> float:
        text = str(value)
        return parse(text if text[-1:].isalpha() else f"{text}GiB", divisor=2**30)

    return parse_size


def _parser(kind: str, least: float) -> Callable[..., float]:
    def parse(value: str, *, divisor: int = 1) -> float:
        from autotune.spec.texts import quantity

        try:
            number = getattr(quantity, kind).parse(str(value)) / divisor
        except SpecError as error:
            raise typer.BadParameter(str(error)) from None
        if number < least:
            raise typer.BadParameter(f"must be at least {least:g}, but is {value}")
        return float(number)

    return parse


def time_span_s(text: str, option: str) -> float:
    """Parse a time with a unit, such as 90d or 12h, in seconds. Raises `SpecError` if the unit is
    missing or the text is no time."""
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
