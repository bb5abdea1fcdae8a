"""Segments of a step: how the memory of one rank rises and falls while one layer (or what is before and behind the layers) runs forward or backward.

    b micro-batch    s positions of a sequence on this rank    t tensor-parallel ranks    size = c * b^i * s^j * t^-k bytes

A dry run is made at sizes b and s that share no prime factor with the sizes of the model (`marked_sizes`), so that the exponents i and j of every
storage can be read from its bytes alone. Exponent k comes from a second run of the same segment on more tensor-parallel ranks.

A segment is cut into parts by marks: the moments at which the gradient of a weight is complete. Of each part are kept its net change, and those rises
inside it that can be the highest at some sizes; the rest of its events is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.errors import DryRunError
from autotune.spec import TracedSegment

Monomial = tuple[int, int, int]
"""exponents of (b, s, 1/t)"""
_PRIMES = (23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)


def marked_sizes(sizes: Iterable[int], *, multiple: int = 1, longest: int = 0) -> tuple[int, int]:
    """(b, s): primes, s times a power of two, that divide no size of the model; s is a multiple of `multiple`.

    `longest`: the most positions that the model is known to take. Where the multiple would exceed it, s is a multiple of a smaller power of two.
    """
    known = [size for size in sizes if size]
    free = [p for p in _PRIMES if all(size % p for size in known)]
    power = 16
    while power % multiple:
        power *= 2
        if power > 1 << 16:
            raise DryRunError(f"no sequence length of a profile is a multiple of {multiple}")
    if free[1] <= longest:
        while free[1] * power > longest:
            power //= 2
    return free[0], free[1] * power


def monomial_of(size_bytes: int, b: int, s: int) -> Monomial:
    """Exponents of b and of the odd part of s in a size; that of t is 0."""
    odd = s // (s & -s)
    found = []
    for prime in (b, odd):
        count = 0
        while size_bytes % prime == 0 and count < 2:
            size_bytes, count = size_bytes // prime, count + 1
        found.append(count)
    return found[0], found[1], 0


def size_read(num_bytes: int, b: int, s: int) -> tuple[float, Monomial]:
    """(coefficient, monomial) of a size, signed, in a run at (b, s)."""
    i, j, _ = monomial_of(abs(num_bytes), b, s) if num_bytes else (0, 0, 0)
    return num_bytes / (b**i * s**j), (i, j, 0)


@dataclass(frozen=True, slots=True)
class Event:
    """One change of the allocated memory, or a mark."""

    coefficient: float
    """bytes over b^i s^j, signed; of a mark the bytes of the weight whose gradient is complete"""
    monomial: Monomial
    """its exponents"""
    weight: int = -1
    """of a mark, number of the weight among those of its layer, or of those outside of the layers; marks change no memory"""

    @property
    def is_mark(self) -> bool:
        """Whether a gradient is complete here."""
        return self.weight >= 0


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """The parts of one segment between its marks."""

    monomials: tuple[Monomial, ...]
    """the M terms of its sizes"""
    nets: NDArray[np.float64]
    """(K + 1, M): coefficients of the net change of each part"""
    tops: tuple[NDArray[np.float64], ...]
    """of each part (R, M): coefficients of rises above its beginning"""
    marks: NDArray[np.float64]
    """(K, 3): bytes of the weight at each mark, the exponent of 1/t in them, and its number"""

    @classmethod
    def of(cls, events: Sequence[Event]) -> Segment:
        """The segment of these events, in order."""
        monomials = tuple(sorted({e.monomial for e in events if not e.is_mark} or {(0, 0, 0)}))
        place = {m: i for i, m in enumerate(monomials)}
        nets: list[NDArray[np.float64]] = []
        tops: list[NDArray[np.float64]] = []
        marks: list[tuple[float, int, int]] = []
        level = np.zeros(len(monomials))
        rises: list[NDArray[np.float64]] = [level.copy()]
        for event in events:
            if event.is_mark:
                marks.append((event.coefficient, event.monomial[2], event.weight))
                nets.append(level)
                tops.append(_undominated(rises))
                level = np.zeros(len(monomials))
                rises = [level.copy()]
                continue
            level = level.copy()
            level[place[event.monomial]] += event.coefficient
            if event.coefficient > 0:
                rises.append(level)
        nets.append(level)
        tops.append(_undominated(rises))
        return cls(monomials, np.array(nets), tuple(tops), np.array(marks, dtype=float).reshape(-1, 3))

    def marks_at(self, t: float) -> tuple[tuple[float, int], ...]:
        """Bytes and number of the weight at each mark."""
        sizes = (self.marks[:, 0] / t ** self.marks[:, 1]).tolist()
        return tuple(zip(sizes, self.marks[:, 2].astype(int).tolist(), strict=True))

    def at(self, b: Any, s: float, t: float) -> SegmentBytes:
        """The segment in bytes at these sizes; `b` may be U micro-batches."""
        sizes = np.asarray(b, dtype=float)
        values = np.array([sizes**i * (s**j / t**k) for i, j, k in self.monomials])
        nets = self.nets @ values
        starts = np.concatenate((np.zeros_like(nets[:1]), np.cumsum(nets, axis=0)))
        tops = starts[:-1] + np.array([(rows @ values).max(axis=0) for rows in self.tops])
        return SegmentBytes(np.concatenate((starts[:1], tops, starts[1:-1], starts[-1:])), starts[-1])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "monomials": [list(m) for m in self.monomials],
            "nets": self.nets.tolist(),
            "tops": [rows.tolist() for rows in self.tops],
            "marks": self.marks.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Segment:
        """The segment of `to_dict`'s values."""
        monomials = tuple((int(i), int(j), int(k)) for i, j, k in values["monomials"])
        tops = tuple(np.array(rows, dtype=float) for rows in values["tops"])
        marks = np.array(values["marks"], dtype=float).reshape(-1, 3)
        return cls(monomials, np.array(values["nets"], dtype=float), tops, marks)


@final
@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """A segment of K marks at given sizes, in bytes above its beginning."""

    rows: NDArray[np.float64]
    """(2K + 3,) or (2K + 3, U): level at its beginning, highest level inside each part, level at each mark, level at its end"""
    net: NDArray[np.float64]
    """() or (U,): level at its end"""


def cut_exponent(at_few: float, at_many: float, degrees: tuple[int, int] = (2, 4)) -> int | None:
    """Exponent of 1/t in what is the first number on the fewer tensor-parallel ranks and the second on the more, both above or both below zero; None where
    there is none."""
    ratio, times = at_few / at_many, degrees[1] / degrees[0]
    k = round(float(np.log(ratio) / np.log(times))) if ratio > 0 else -1
    # a width that the more ranks do not divide has the larger part on the first rank: the whole is taken from the cut among the fewer
    return k if k in (0, 1, 2) and abs(ratio / times**k - 1.0) <= 0.01 else None


def handed_on(one: TracedSegment, other: TracedSegment) -> list[tuple[int, int]]:
    """(storage, bytes) of what the one segment makes and the other frees."""
    made = {x: change for x, change in zip(one.storages, one.changes_bytes, strict=True) if change > 0}
    freed = {x for x, change in zip(other.storages, other.changes_bytes, strict=True) if change < 0}
    return [(x, change) for x, change in made.items() if x in freed]


def aligned(at_few: Sequence[Event], at_many: Sequence[Event], degrees: tuple[int, int] = (2, 4)) -> list[Event] | None:
    """The events of a segment with the exponents of 1/t, from two runs on so many tensor-parallel ranks; None where the two do not correspond."""
    if len(at_few) != len(at_many):
        return None
    found = []
    for few, many in zip(at_few, at_many, strict=True):
        if few.weight != many.weight or few.monomial != many.monomial or few.coefficient * many.coefficient < 0:
            return None
        if many.coefficient == 0 or few.coefficient == 0:
            continue
        k = cut_exponent(few.coefficient, many.coefficient, degrees)
        if k is None:
            return None
        whole = few.coefficient * degrees[0] ** k
        found.append(Event(whole, (few.monomial[0], few.monomial[1], k), few.weight))
    return found


def _undominated(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The rows that no other row reaches or exceeds in all terms."""
    stacked = np.unique(np.array(rows), axis=0)
    keep = [
        i
        for i, row in enumerate(stacked)
        if not any(j != i and (other >= row).all() for j, other in enumerate(stacked))
    ]
    return np.asarray(stacked[keep])
