"""A law of the space, and the arithmetic that laws share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ParallelConfig, Workload

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One rule that a config obeys or breaks."""

    name: str
    """short and stable: rejected combinations are counted under it"""
    broken: str
    """what is wrong with a config that breaks it, in a few words without values: people read it
    beside the count"""
    fields: tuple[str, ...]
    """the knobs that it reads; it can be checked as soon as they are known"""
    check: Callable[[Workload, ConfigTable], Mask]
    """where it holds, shape (N,)"""
    reason: Callable[[Workload, ParallelConfig], str]
    """why it is broken: law, values, remedy"""


def product(table: ConfigTable, *names: str) -> NDArray[np.float64]:
    """The product of columns; as floats, which are exact as far as any cluster goes and cannot wrap
    around."""
    product = np.ones(len(table), dtype=np.float64)
    for name in names:
        product *= table.column(name)
    return product


def divides(number: int, by: NDArray[np.int64]) -> Mask:
    """Where the number is a multiple of `by`."""
    mask: Mask = number % by == 0
    return mask


def divisors(number: int, *, at_most: int) -> list[int]:
    """The divisors of a number, up to `at_most`."""
    return [d for d in range(1, min(number, at_most) + 1) if number % d == 0]


def listed(values: Sequence[int]) -> str:
    """ "1, 2 or 4"."""
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
