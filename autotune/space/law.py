"""`Law`, a rule that valid configs satisfy, and arithmetic that the rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ParallelConfig, Workload

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One rule that valid configs satisfy."""

    name: str
    """short, stable name, under which excluded combinations are counted"""
    broken: str
    """a short description of the violation without values, shown next to the count"""
    fields: tuple[str, ...]
    """the knobs that it reads; it can be checked as soon as they are known"""
    check: Callable[[Workload, ConfigTable], Mask]
    """returns the mask of the rows that satisfy it, shape (N,)"""
    reason: Callable[[Workload, ParallelConfig], str]
    """returns why a config violates it: rule, values, remedy"""


def product(table: ConfigTable, *names: str) -> NDArray[np.float64]:
    """The product of columns, shape (N,). Floats are exact for any real cluster and cannot
    overflow."""
    product = np.ones(len(table), dtype=np.float64)
    for name in names:
        product *= table.column(name)
    return product


def divides(number: int, by: NDArray[np.int64]) -> Mask:
    """Mask of the rows in which `by` divides the number, shape (N,)."""
    mask: Mask = number % by == 0
    return mask


def divisors(number: int, *, at_most: int) -> list[int]:
    """The divisors of a number, up to `at_most`."""
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]


def listed(values: Sequence[int]) -> str:
    """Format numbers as "1, 2 or 4"."""
    texts = [str(v) for v in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"
