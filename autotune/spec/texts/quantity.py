"""Conversion of quantities from text with a unit, as users write them, to plain numbers in the base
unit.

    TIME            s            90s  15min  1h30m  2d  250ms  5us
    TOKENS          tokens       300B  15T  1.5M
    SEQUENCE        tokens       2048; 2k is rejected, because it may mean 2,000 or 2,048
    BYTES           bytes        80GiB = 80 x 2^30  80GB = 80 x 10^9; 80G is rejected, because it may mean either
    BYTES_PER_S     bytes/s      3.35TB/s  400Gbit/s; 400Gb/s is rejected, because it may mean bits or bytes
    FLOPS_PER_S     flops/s      989TFLOPS  1.98PFLOP/s

Specs, options and requests accept a plain number in the base unit as well. Stored values and JSON
output always have the plain number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from autotune.errors import SpecError

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PREFIXES = tuple(prefix for prefix in _DECIMAL if prefix)
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
_BITS_OR_BYTES = "may mean bits or bytes"
_MAX_LENGTH = 40
"""maximum number of characters in a quantity"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A kind of number with a dimension, and its usual units."""

    noun: str
    """name of the quantity, with an article"""
    base: str
    """unit of the plain number"""
    units: Mapping[str, Decimal]
    """size of each unit in the base unit"""
    example: str
    """an example of the notation"""
    rejected: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """(reason, replacement) by rejected unit; both may contain {number}"""
    any_case: bool = False
    """whether case is ignored"""
    compound: bool = False
    """whether several numbers with units may be joined, as in 1h30m"""

    def parse(self, text: str) -> float:
        """Return the plain number in the base unit. Raises `SpecError`, without a field."""
        total = Decimal(0)
        parts = self._parts(text)
        for number, unit in parts:
            if not unit and len(parts) > 1:
                raise self._error(text)
            if unit in self.rejected:
                why, instead = self.rejected[unit]
                raise SpecError(
                    f"must be {self.noun}, but {text!r} {why.format(number=number)}",
                    remedy=f"write {instead.format(number=number)}",
                )
            if (size := self._size(unit)) is None:
                raise self._error(text)
            total += Decimal(number) * size
        return float(total)

    def _parts(self, text: str) -> list[tuple[str, str]]:
        """Return the numbers with their units."""
        one = rf"\s*({_NUMBER})\s*([A-Za-zµμ/]*(?: tokens?)?)\s*"
        if len(text) > _MAX_LENGTH or not re.fullmatch(
            f"(?:{one}){{1,{4 if self.compound else 1}}}", text
        ):
            raise self._error(text)
        return [(found[1], found[2].replace(" ", "")) for found in re.finditer(one, text)]

    def _size(self, unit: str) -> Decimal | None:
        """Return the unit's size in the base unit; None if it is unknown."""
        if not unit:
            return Decimal(1)
        if not self.any_case:
            return self.units.get(unit)
        return next(
            (size for name, size in self.units.items() if name.lower() == unit.lower()), None
        )

    def _error(self, text: str) -> SpecError:
        """Return the error for text that is not a number with a known unit."""
        return SpecError(
            f"must be {self.noun}, in {self.base} or with a unit, but is {text[:80]!r}",
            remedy=f"write e.g. {self.example}",
        )


def _scaled(
    unit: str, powers: Mapping[str, int], *, of: int = 10, times: Decimal = Decimal(1)
) -> dict[str, Decimal]:
    """Return the sizes of a unit with each prefix: `of` to the power of the prefix, `times` a
    factor."""
    return {f"{prefix}{unit}": Decimal(of) ** power * times for prefix, power in powers.items()}


_MINUTE, _HOUR, _DAY = Decimal(60), Decimal(3600), Decimal(86400)
TIME = Quantity(
    noun="a time",
    base="seconds",
    units={
        **dict.fromkeys(("ns",), Decimal("1e-9")),
        **dict.fromkeys(("us", "µs", "μs"), Decimal("1e-6")),
        **dict.fromkeys(("ms",), Decimal("1e-3")),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Decimal(1)),
        **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), _MINUTE),
        **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), _HOUR),
        **dict.fromkeys(("d", "day", "days"), _DAY),
        **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
    },
    example="90s, 15min, 1h30m or 2d",
    rejected={"M": ("has a unit that can mean millions or months", "{number}min for minutes")},
    compound=True,
)
_COUNTS = {"k": 3, "M": 6, "B": 9, "T": 12}
_TOKEN = dict.fromkeys(("token", "tokens"), Decimal(1))
TOKENS = Quantity(
    noun="a number of tokens",
    base="tokens",
    units={**_TOKEN, **_scaled("", _COUNTS), **_scaled("tokens", _COUNTS)},
    example="300B (300 x 10^9) or 15T (15 x 10^12)",
    rejected=dict.fromkeys(
        ("G", "g"), ("has a unit of bytes", "{number}B for {number} x 10^9 tokens")
    ),
    any_case=True,
)
SEQUENCE = Quantity(
    noun="a number of tokens",
    base="tokens",
    units={**_TOKEN, "Ki": Decimal(1024), "Mi": Decimal(1024**2)},
    example="8Ki (8 x 1024) or 8192",
    rejected={
        **dict.fromkeys(("k", "K"), ("may mean {number} x 1000 or {number} x 1024", "{number}Ki for {number} x 1024, or the whole number")),
        **dict.fromkeys(("m", "M"), ("may mean a million or 1024 x 1024", "{number}Mi for {number} x 1024 x 1024, or the whole number")),
    },
)  # fmt: skip
BYTES = Quantity(
    noun="a number of bytes",
    base="bytes",
    units={
        **dict.fromkeys(("byte", "bytes"), Decimal(1)),
        **_scaled("B", _DECIMAL),
        **_scaled("B", _BINARY, of=2),
    },
    example="80GiB (80 x 2^30) or 80GB (80 x 10^9)",
    rejected={
        **{
            p: ("can mean powers of 1000 or of 1024", f"{{number}}{p}B or {{number}}{p.upper()}iB")
            for p in _DECIMAL
            if p
        },
        **{f"{p}b": ("has a unit of bits", f"{{number}}{p}B for bytes") for p in _PREFIXES},
    },
)
BYTES_PER_S = Quantity(
    noun="a rate of data",
    base="bytes per second",
    units={
        **_scaled("B/s", _DECIMAL),
        **_scaled("B/s", _BINARY, of=2),
        **_scaled("bit/s", _DECIMAL, times=Decimal("0.125")),
        **_scaled("bps", _DECIMAL, times=Decimal("0.125")),
    },
    example="3.35TB/s (bytes) or 400Gbit/s (bits)",
    rejected={
        **{
            f"{p}{b}": (_BITS_OR_BYTES, f"{{number}}{p}B/s or {{number}}{p}bit/s")
            for p in _PREFIXES
            for b in ("", "b", "b/s")
        },
        **{f"{p}B": ("has a unit without time", f"{{number}}{p}B/s") for p in _PREFIXES},
    },
)
FLOPS_PER_S = Quantity(
    noun="a rate of operations",
    base="operations per second",
    units={
        **_scaled("FLOPS", _DECIMAL),
        **_scaled("FLOP/s", _DECIMAL),
        **_scaled("FLOPs", _DECIMAL),
    },
    example="989TFLOPS",
)
