"""Memory of replicated weights over a step (ZeRO 0 and 1), from their shapes alone.

    B buckets    n gradients that arrive in a backward pass    d ranks that divide the optimizer's states

It follows `autotune_workers.training.data_parallel`: buckets of 25 MiB in the order in which gradients arrive, each flattened when its last gradient of
the step is there, and none before the bucket ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile_weights import Arrivals, ForwardSegments, Levels, RankShapes, WeightShape

BUCKET_BYTES = 25 << 20
"""of `autotune_workers.training.data_parallel`"""
Column = NDArray[np.float64]
Placed = tuple[int, int, WeightShape]
"""Layer of a weight (-1 outside of the layers), its number among those of the layer, and its shape."""


@final
@dataclass(frozen=True, slots=True)
class _Order:
    """How the gradients of a backward pass fill the buckets."""

    sizes: Column
    """(n,): bytes of each gradient"""
    rows: NDArray[np.intp]
    """(R,): gradients that are there at each row of the pass"""
    mark_rows: NDArray[np.intp]
    """(n,): row of each gradient's arrival"""
    sent_at: NDArray[np.float64]
    """(B,): number of the gradient with which each bucket is sent; infinite where one of its gradients does not arrive"""
    sent: NDArray[np.intp]
    """(n + 1,): buckets that have been sent before the first gradient, and behind each"""
    whole: Column
    """(B,): bytes of gradients that are whole though their weights are cut: they are summed over the ranks before they are sent"""
    summed: Column
    """(B,): bytes of this rank's parts of these sums"""


@final
class Buckets:
    """Which weights travel together, and when: the same for all layouts that share the shapes of a rank's weights."""

    def __init__(self, shapes: RankShapes, arrivals: Mapping[bool, Arrivals]) -> None:
        """`arrivals`: of the first backward pass of a step (True) and of later ones."""
        self.shapes = shapes
        buckets = bucketed(shapes)
        self._of = {
            (layer, number): (index, 4.0 * weight.numel)
            for index, bucket in enumerate(buckets)
            for layer, number, weight in bucket
        }
        self.bytes: Column = np.array([4.0 * sum(weight.numel for _, _, weight in bucket) for bucket in buckets])
        """(B,): of each bucket's weights"""
        self.lasts: Column = np.array([4.0 * bucket[-1][2].numel for bucket in buckets])
        """(B,): bytes of its last weight, whose gradient is freed last"""
        self._weights = np.array([len(bucket) for bucket in buckets], dtype=np.int64)
        self.orders = {first: self._order(each) for first, each in arrivals.items()}
        """how the gradients of the first backward pass (True) and of later ones fill them"""

    def _order(self, arrivals: Arrivals) -> _Order:
        sizes, owns, places = list[float](), list[float](), list[int]()
        rows, mark_rows = list[int](), list[int]()
        for _, layer, marks in arrivals:
            start = len(sizes)
            rows += (start, *range(start, start + len(marks) + 1))
            mark_rows += range(len(rows), len(rows) + len(marks))
            rows += (*range(start + 1, start + len(marks) + 1), start + len(marks))
            for size_bytes, number in marks:
                bucket, own_bytes = self._of[layer, number]
                sizes.append(size_bytes)
                owns.append(own_bytes)
                places.append(bucket)
        size, own, count = np.array(sizes), np.array(owns), len(self.bytes)
        place = np.array(places, dtype=np.int64)
        last = np.full(count, -1.0)
        np.maximum.at(last, place, np.arange(len(place), dtype=float))
        last[np.bincount(place, minlength=count) < self._weights] = np.inf
        sent_at = np.maximum.accumulate(last)
        whole = size > own
        return _Order(
            sizes=size,
            rows=np.array(rows, dtype=np.intp),
            mark_rows=np.array(mark_rows, dtype=np.intp),
            sent_at=sent_at,
            sent=np.searchsorted(sent_at, np.arange(-1, len(place)), side="right"),
            whole=np.bincount(place[whole], size[whole], minlength=count).astype(float),
            summed=np.bincount(place[whole], own[whole], minlength=count).astype(float),
        )


def bucketed(shapes: RankShapes) -> list[list[Placed]]:
    """The weights of each bucket. Those that tensor parallelism has cut have buckets of their own."""
    found: list[list[Placed]] = []
    opened: dict[bool, tuple[list[Placed], int]] = {}
    for layer, number, weight in _arriving(shapes):
        bucket, held_bytes = opened.get(weight.is_cut, ([], 0))
        if held_bytes + 4 * weight.numel > BUCKET_BYTES:
            bucket, held_bytes = [], 0
        if not bucket:
            found.append(bucket)
        bucket.append((layer, number, weight))
        opened[weight.is_cut] = bucket, held_bytes + 4 * weight.numel
    return found


def _arriving(shapes: RankShapes) -> Iterator[Placed]:
    """The weights, the last of the model first."""
    for number, weight in reversed(tuple(enumerate(shapes.last))):
        yield -1, shapes.firsts + number, weight
    inner = tuple(reversed(tuple(enumerate(shapes.layer))))
    for layer in reversed(range(shapes.layers)):
        for number, weight in inner:
            yield layer, number, weight
    for number, weight in reversed(tuple(enumerate(shapes.first))):
        yield -1, number, weight


@final
class ReplicatedInStep:
    """ZeRO 0 and 1."""

    sends_in_last_pass = True

    def __init__(self, buckets: Buckets, *, zero_stage: int, shards: int, ranks: int, moment_bytes: int) -> None:
        """`ranks` hold the same weights; `shards` of them divide the optimizer's states in stage 1."""
        self._sharded, self._sends, self._shards = zero_stage == 1 and ranks > 1, ranks > 1, shards
        self._buckets, numel = buckets, buckets.shapes.numel
        flats = 4.0 * shards * np.ceil(buckets.bytes / (4.0 * shards))
        self._flats = flats
        """(B,): bytes of each bucket, filled up to a multiple of the shards"""
        self._parts = flats / shards if self._sharded else np.zeros_like(flats)
        self._whole, self._summed = np.zeros_like(flats), np.zeros_like(flats)
        self._level, self._sent = 0.0, 0
        states = float(moment_bytes * numel)
        if self._sharded:
            states = (1.0 + moment_bytes / 4.0) * float(flats.sum()) / shards
        self.weights_bytes = 4.0 * numel
        self.states_bytes = self.weights_bytes + states

    def forward(self, segments: ForwardSegments) -> Levels:
        """See `WeightsInStep`."""
        return np.full(3 * len(segments), self._level)

    def backward(self, *, first: bool, last: bool) -> Levels:
        """See `WeightsInStep`."""
        order = self._buckets.orders[first]
        there = np.full(len(order.sizes) + 1, self._level)
        """when each gradient is there"""
        if first:
            there[1:] += np.cumsum(order.sizes)
            self._whole, self._summed = order.whole, order.summed
        highest = there[1:].copy()
        if last and self._sends:
            changes, tops = self._sending()
            gone = np.concatenate(([0.0], np.cumsum(changes)))
            self._sent = int(order.sent[-1])
            at = order.sent_at[: self._sent].astype(np.intp)
            np.maximum.at(highest, at, there[1:][at] + gone[: self._sent] + tops[: self._sent])
            highest = np.maximum(highest, there[1:] + gone[order.sent[:-1]])
            there += gone[order.sent]
        levels = there[order.rows]
        levels[order.mark_rows] = highest
        self._level = float(there[-1])
        return levels

    def _sending(self) -> tuple[Column, Column]:
        """(B,) each, of a bucket that is flattened and sent: the change of the level, and its highest rise meanwhile."""
        own, flat, part = self._buckets.bytes, self._flats, self._parts
        summing = self._summed - self._whole
        flattening = summing + np.maximum(flat, flat - own + self._buckets.lasts + part)
        return summing + flat - own + part, np.maximum(self._summed, flattening)

    def finish(self) -> float:
        """See `WeightsInStep`."""
        if not self._sends:
            before = np.concatenate(([0.0], np.cumsum(self._summed - self._whole)))
            return self._level + float(max(0.0, (before[:-1] + self._summed).max(initial=0.0)))
        changes, tops = (values[self._sent :] for values in self._sending())
        before = np.concatenate(([0.0], np.cumsum(changes)))
        highest = self._level + float(max(0.0, (before[:-1] + tops).max(initial=0.0)))
        self._level += float(before[-1])
        if self._sharded:  # the sums are gathered bucket by bucket
            self._level -= float(self._flats.sum())
            before = np.concatenate(([0.0], self._flats[:-1]))
            left = np.concatenate(([0.0], np.cumsum(self._parts)[:-1]))
            highest = max(highest, self._level + float((self._flats + before - left).max(initial=0.0)))
        return highest
