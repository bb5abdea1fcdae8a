"""Reads the changes of memory in the trace of one dry run as events of a profile: sizes with their exponents, and marks of gradients.

A template leaves out what follows from the shapes of the weights alone (`profile_templates.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import final

from autotune.cost.profile_gradient_sizes import sizes_of_weights, weight_bytes
from autotune.cost.profile_segments import Event, handed_on, size_read
from autotune.spec import MemoryTrace, TracedSegment, TracedWeight

BACKWARD = ("loss_backward", "head_backward", "layer_backward", "end")
"""segments of the backward pass"""


@final
class TraceReader:
    """Turns the changes of one trace into events."""

    def __init__(self, trace: MemoryTrace, b: int, s: int, tp: int, sharded: bool, element_bytes: int) -> None:
        self._b, self._s, self._tp, self._sharded, self._element_bytes = b, s, tp, sharded, element_bytes
        self._freed: dict[int, int] = {}
        self._made: dict[int, str] = {}
        """kind of the segment in which a storage is made"""
        self.modes = trace.recompute
        self._weights = trace.weights
        self._plain = sizes_of_weights(trace.weights)
        self._seen = {x for y in trace.segments if y.kind not in BACKWARD for x in y.storages}
        """storages that are made outside of backward passes, such as gathered weights"""
        for place, segment in enumerate(trace.segments):
            for storage, change in zip(segment.storages, segment.changes_bytes, strict=True):
                if change < 0:
                    self._freed[storage] = place
                else:
                    self._made.setdefault(storage, segment.kind)
        self._kept = set(self._kept_for_backward(trace))
        """storages that a forward pass makes and its own backward pass frees, such as the casts of a norm's weights"""
        ends = {place for place, x in enumerate(trace.segments) if x.kind == "end"}
        self._waiting = {
            x.micro_batch: [
                c for s, c in zip(x.storages, x.changes_bytes, strict=True) if c > 0 and self._freed.get(s) in ends
            ]
            for x in trace.segments
            if x.kind == "head_backward"
        }
        """bytes that are made behind the layers and wait until the end of the backward pass"""

    def _kept_for_backward(self, trace: MemoryTrace) -> Iterator[int]:
        for segment in trace.segments:
            changes = Counter[int]()
            for storage, change in zip(segment.storages, segment.changes_bytes, strict=True):
                changes[storage] += change
            ending = (f"{segment.kind}_backward", segment.micro_batch, segment.layer)
            for storage in (x for x, change in changes.items() if change > 0 and x in self._freed):
                freeing = trace.segments[self._freed[storage]]
                if (freeing.kind, freeing.micro_batch, freeing.layer) == ending:
                    yield storage

    def sized(self, size_bytes: int) -> tuple[float, tuple[int, int, int]]:
        """(coefficient, monomial) of a size."""
        if abs(size_bytes) in self._plain:
            return float(size_bytes), (0, 0, 0)
        return size_read(size_bytes, self._b, self._s)

    def output(self, head: TracedSegment) -> int:
        """The storage that a stage gives on: the last that it makes behind the layers and that outlives it; -1 where there is none."""
        freed = {x for x, change in zip(head.storages, head.changes_bytes, strict=True) if change < 0}
        made = [x for x, change in zip(head.storages, head.changes_bytes, strict=True) if change > 0 and x not in freed]
        return made[-1] if made else -1

    def changes_of(self, segment: TracedSegment, storage: int) -> list[Event]:
        """The events of one storage."""
        return [
            Event(*self.sized(change))
            for x, change in zip(segment.storages, segment.changes_bytes, strict=True)
            if x == storage
        ]

    def _is_shared(self, segment: TracedSegment, storage: int, change: int) -> bool:
        """Whether the segment frees what is made once for all layers, or once per layer but freed for all together."""
        maker = "pre" if segment.layer >= 0 else "layer" if segment.kind == "loss" else ""
        return change < 0 and bool(maker) and self._made.get(storage) == maker

    def events(self, segment: TracedSegment, without: Collection[int] = ()) -> list[Event]:
        """The events of one segment, with marks, but not those of the storages `without`, nor of those that layers share."""
        arrivals: dict[int, list[int]] = {}
        for place, weight in segment.arrivals:
            arrivals.setdefault(place, []).append(weight)
        wanted = self._wanted(segment)
        found: list[Event] = []
        outliving: list[int] = []
        """bytes of each gradient that was made and not yet marked"""

        def mark(weights: Iterable[int]) -> None:
            found.extend(self._mark(weight, outliving) for weight in weights)

        for place, (storage, change) in enumerate(zip(segment.storages, segment.changes_bytes, strict=True)):
            mark(arrivals.pop(place, ()))
            if storage in without or self._is_shared(segment, storage, change):
                continue
            coefficient, monomial = self.sized(change)
            plain = monomial == (0, 0, 0)
            if self._sharded:
                made = plain and storage not in self._seen and segment.kind in BACKWARD
                if not plain or storage in self._kept:
                    found.append(Event(coefficient, monomial))
                elif made and self._takes(wanted, change * 4 // self._element_bytes):
                    found.append(Event(change * 4.0 / self._element_bytes, monomial, weight=0))
                continue
            if plain and segment.kind in BACKWARD and change > 0 and storage not in self._freed:
                outliving.append(change)
            else:
                found.append(Event(coefficient, monomial))
        for weights in arrivals.values():
            mark(weights)
        return found

    def _mark(self, weight: int, made_bytes: list[int]) -> Event:
        """`made_bytes`: of the gradients that are new, from which that of the weight is taken; it may be whole where its weight is cut."""
        traced = self._weights[weight]
        number = sum(1 for other in self._weights[:weight] if other.layer == traced.layer)
        size = weight_bytes(traced)
        for made in (size * self._tp, size) if traced.is_cut else (size,):
            if made in made_bytes:
                made_bytes.remove(made)
                return Event(float(made), (0, 0, 0), weight=number)
        return Event(float(size), (0, 0, 0), weight=number)

    def between(self, one: TracedSegment, other: TracedSegment, *, of_weights: bool = False) -> list[Event]:
        """What the one makes and the other frees. `of_weights`: also what does not depend on the data, unless weights are sharded."""
        events = [Event(*self.sized(change)) for _, change in handed_on(one, other)]
        return [event for event in events if any(event.monomial) or (of_weights and not self._sharded)]

    def storages_between(self, one: TracedSegment, other: TracedSegment, like: Collection[Event]) -> tuple[int, ...]:
        """The storages of these sizes that the one makes and the other frees."""
        return tuple(x for x, change in handed_on(one, other) if Event(*self.sized(change)) in like)

    def _wanted(self, segment: TracedSegment) -> list[TracedWeight]:
        """The weights whose gradients may come here."""
        if segment.layer >= 0 or not any(w.layer >= 0 for w in self._weights):
            return [w for w in self._weights if w.layer == segment.layer]
        first_layer = next(place for place, w in enumerate(self._weights) if w.layer >= 0)
        edges = [(place < first_layer, w) for place, w in enumerate(self._weights) if w.layer < 0]
        lasts, firsts = ([w for is_first, w in edges if is_first == first] for first in (False, True))
        tied = self._tied(segment.micro_batch, lasts, firsts)
        if segment.kind == "end":
            return [w for w in firsts if w not in tied]
        return [*lasts, *tied] if segment.kind == "head_backward" else lasts

    def _tied(
        self, micro_batch: int, lasts: Sequence[TracedWeight], firsts: Sequence[TracedWeight]
    ) -> list[TracedWeight]:
        """Embeddings that the output shares: the gradient that comes behind the layers waits for that of the input."""
        waiting = {x * 4 // self._element_bytes for x in self._waiting.get(micro_batch, ())}
        waiting -= {weight_bytes(w) for w in lasts}
        return [w for w in firsts if weight_bytes(w) * (self._tp if w.is_cut else 1) in waiting]

    def _takes(self, wanted: list[TracedWeight], size_bytes: int) -> bool:
        """Whether a storage of so many bytes in fp32 is the gradient of one of the weights, which is then no longer wanted."""
        for times in (1, self._tp):  # a gradient may be whole where its weight is cut
            for weight in wanted:
                if weight_bytes(weight) * (times if weight.is_cut else 1) == size_bytes:
                    wanted.remove(weight)
                    return True
        return False
