"""Work and traffic of a profile: the operations and collectives of each segment of a micro-batch, with sizes that scale.

    b micro-batch    s positions of a sequence on this rank    t tensor-parallel ranks    size = c * b^i * s^j * t^-k

`profile_work_read.py` reads it from dry runs. A later micro-batch does the same work as the first. Collectives over data-parallel ranks are left out: they follow
from the shapes of the weights (`profile_traffic.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from autotune.cost.profile_segments import Monomial, Segment, cut_exponent, size_read


@final
@dataclass(frozen=True, slots=True)
class Size:
    """A number that grows with the micro-batch and the sequence, and shrinks with tensor parallelism."""

    coefficient: float
    """over b^i s^j t^-k"""
    monomial: Monomial
    """(i, j, k)"""

    def at(self, b: float, s: float, t: float) -> float:
        """Its value."""
        i, j, k = self.monomial
        return self.coefficient * b**i * s**j / t**k

    @classmethod
    def read(cls, value: int, b: int, s: int) -> Size:
        """The size of a number in a run at (b, s)."""
        return cls(*size_read(value, b, s))

    def cut_as(self, at_many: Size, degrees: tuple[int, int] = (2, 4)) -> Size | None:
        """Of a run on the fewer ranks, the size whose value on the more is the other's; None where no power of t explains both."""
        if not self.coefficient and not at_many.coefficient:
            return self
        if self.monomial != at_many.monomial or not at_many.coefficient:
            return None
        k = cut_exponent(self.coefficient, at_many.coefficient, degrees)
        if k is None:
            return None
        return Size(self.coefficient * degrees[0] ** k, (self.monomial[0], self.monomial[1], k))


@final
@dataclass(frozen=True, slots=True)
class ProfiledOperation:
    """`TracedOperation` with sizes that scale."""

    flops: Size
    """with the scores that a mask hides"""
    sizes: tuple[Size, Size, Size, Size]
    """(m, n, k, how many) of the products; zeros for attention"""
    dtype: str
    """of its operands"""
    hidden: float
    """share of its FLOPs that a mask hides"""
    is_again: bool
    """run again in the backward pass"""

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, no attention."""
        return bool(self.sizes[3].coefficient)

    @property
    def is_of_an_expert(self) -> bool:
        """Whether its rows are a share of the tokens that is not the whole."""
        m = max(self.sizes[:3], key=lambda size: size.monomial[:2])
        return self.is_product and m.monomial[:2] == (1, 1) and m.coefficient != 1.0


@final
@dataclass(frozen=True, slots=True)
class ProfiledCollective:
    """`TracedCollective` with a size that scales."""

    kind: str
    """all_reduce, all_gather, ..."""
    axis: str
    """of the mesh"""
    num_bytes: Size
    """see `CollectiveCall`"""


@final
@dataclass(frozen=True, slots=True)
class SegmentWork:
    """Of one segment: what it does, and how often."""

    operations: Mapping[ProfiledOperation, int]
    collectives: Mapping[ProfiledCollective, int]

    def __add__(self, other: SegmentWork) -> SegmentWork:
        return SegmentWork(
            Counter(self.operations) + Counter(other.operations), Counter(self.collectives) + Counter(other.collectives)
        )

    def times(self, count: int) -> SegmentWork:
        """So often."""
        return SegmentWork(
            {one: n * count for one, n in self.operations.items()},
            {one: n * count for one, n in self.collectives.items()},
        )


NOTHING = SegmentWork({}, {})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one kind of training (`profile_runs.kind_of`)."""

    first: SegmentWork
    """of the first stage beside its layers, for one micro-batch, forward and backward"""
    last: SegmentWork
    """of the last stage beside its layers, with the loss"""
    layers: Mapping[str, SegmentWork]
    """by recompute mode: one layer"""
    message: SegmentWork
    """what one stage of a pipeline sends the next for a micro-batch"""
    once: Mapping[str, SegmentWork]
    """collectives over tensor-parallel ranks that come once per step, for gradients of which each rank has a part: of the first stage, of one layer, of
    the last stage"""

    def of_micro_batch(self, mode: str, layers: int, *, is_first: bool, is_last: bool) -> SegmentWork:
        """One micro-batch on a rank with so many layers."""
        found = self.layers[mode].times(layers) if layers else NOTHING
        return found + (self.first if is_first else NOTHING) + (self.last if is_last else NOTHING)

    def of_step_end(self, layers: int, *, is_first: bool, is_last: bool) -> SegmentWork:
        """What comes once per step."""
        found = self.once["layer"].times(layers)
        return found + (self.once["first"] if is_first else NOTHING) + (self.once["last"] if is_last else NOTHING)

    def with_message(self, message: Segment) -> Work:
        """With another message, of so many bytes."""
        sizes = [Size(float(c), m) for c, m in zip(message.nets.sum(axis=0), message.monomials, strict=True) if c]
        return replace(self, message=SegmentWork({}, {ProfiledCollective("send", "pp", size): 1 for size in sizes}))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "first": _plain(self.first),
            "last": _plain(self.last),
            "layers": {mode: _plain(work) for mode, work in self.layers.items()},
            "message": _plain(self.message),
            "once": {place: _plain(work) for place, work in self.once.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Work:
        """The work of `to_dict`'s values."""
        return cls(
            first=_work(values["first"]),
            last=_work(values["last"]),
            layers={mode: _work(part) for mode, part in values["layers"].items()},
            message=_work(values["message"]),
            once={place: _work(part) for place, part in values["once"].items()},
        )


def _plain(work: SegmentWork) -> list[list[Any]]:
    def size(value: Size) -> list[Any]:
        return [value.coefficient, *value.monomial]

    operations: list[list[Any]] = [
        [n, size(o.flops), [size(x) for x in o.sizes], o.dtype, o.hidden, o.is_again]
        for o, n in work.operations.items()
    ]
    return operations + [[n, c.kind, c.axis, size(c.num_bytes)] for c, n in work.collectives.items()]


def _work(values: Iterable[Sequence[Any]]) -> SegmentWork:
    def size(value: Sequence[Any]) -> Size:
        return Size(float(value[0]), (int(value[1]), int(value[2]), int(value[3])))

    operations: dict[ProfiledOperation, int] = {}
    collectives: dict[ProfiledCollective, int] = {}
    for n, *rest in values:
        if isinstance(rest[0], str):
            collectives[ProfiledCollective(rest[0], rest[1], size(rest[2]))] = n
        else:
            m, width, k, count = (size(x) for x in rest[1])
            operations[ProfiledOperation(size(rest[0]), (m, width, k, count), rest[2], rest[3], rest[4])] = n
    return SegmentWork(operations, collectives)
