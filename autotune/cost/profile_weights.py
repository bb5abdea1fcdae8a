"""Memory of weights, gradients and their synchronization over a step, from the shapes of the weights alone.

Weights are replicated (ZeRO 0 and 1, `profile_replicated.py`) or sharded (ZeRO 2 and 3, `profile_sharded.py`). Here is what both share: the shapes of a rank's weights,
and the protocol by which a step's passes ask for levels. All levels are bytes above the rank's weights and optimizer states.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from autotune.errors import DryRunError
from autotune.spec import MemoryTrace

SHOWN_LAYER = 1
"""The layer whose weights stand for those of all. The first may differ a little (ModernBERT's lacks a norm): checks tell by how much."""


@final
@dataclass(frozen=True, slots=True)
class WeightShape:
    """A weight of a rank, before data parallelism cuts it."""

    rows: int
    """first dimension, which FSDP cuts"""
    columns: int
    """product of the others"""
    is_cut: bool
    """whether tensor parallelism has cut it"""

    @property
    def numel(self) -> int:
        """Elements."""
        return self.rows * self.columns

    def padded(self, shards: int) -> int:
        """Elements when the rows are filled up to a multiple of the shards."""
        return math.ceil(self.rows / shards) * shards * self.columns


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledWeight:
    """A weight of the model."""

    layer: bool
    """whether it is one of a layer's"""
    is_first: bool
    """whether it comes before the layers"""
    shape: tuple[int, ...]
    """whole"""
    cut_dim: int
    """dimension that tensor parallelism cuts; -1 for none"""

    def on(self, tp: int) -> WeightShape:
        """Its part on one of so many tensor-parallel ranks."""
        shape = list(self.shape) or [1]
        if self.cut_dim >= 0 and tp > 1:
            shape[self.cut_dim] = -(-shape[self.cut_dim] // tp)
        return WeightShape(shape[0], math.prod(shape[1:]), self.cut_dim >= 0 and tp > 1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RankShapes:
    """The weights of one rank, in the order of the model."""

    first: tuple[WeightShape, ...]
    """before the layers"""
    layer: tuple[WeightShape, ...]
    """of every layer"""
    last: tuple[WeightShape, ...]
    """behind the layers"""
    layers: int
    """how many layers"""
    firsts: int
    """weights of the model before its layers, on this rank or another: those behind the layers are numbered after them"""

    @classmethod
    def of(
        cls, weights: Sequence[ProfiledWeight], tp: int, layers: int, *, is_first: bool, is_last: bool
    ) -> RankShapes:
        """Of the model's `weights`, those on a rank of a stage with so many layers."""
        edges = [w for w in weights if not w.layer]
        return cls(
            first=tuple(w.on(tp) for w in edges if w.is_first) if is_first else (),
            layer=tuple(w.on(tp) for w in weights if w.layer),
            last=tuple(w.on(tp) for w in edges if not w.is_first) if is_last else (),
            layers=layers,
            firsts=sum(w.is_first for w in edges),
        )

    @property
    def numel(self) -> int:
        """Elements of all."""
        edges = sum(w.numel for w in (*self.first, *self.last))
        return edges + self.layers * sum(w.numel for w in self.layer)


def weights_of(traces: Sequence[tuple[int, MemoryTrace]]) -> tuple[ProfiledWeight, ...]:
    """The weights of a model, of whose layers one stands for all, from traces by tensor-parallel degree: two degrees show what is cut.

    Raises `DryRunError` where layers between the first and the last differ.
    """
    by_tp = dict(traces)
    tp, trace = min(by_tp.items(), key=lambda item: item[0])
    other = max(by_tp.items(), key=lambda item: item[0])[1]
    shapes = defaultdict[int, list[tuple[int, ...]]](list)
    for weight in trace.weights:
        shapes[weight.layer].append(tuple(weight.shape))
    for layer in range(SHOWN_LAYER + 1, max(shapes, default=0)):
        if shapes[layer] != shapes[SHOWN_LAYER]:
            raise DryRunError(
                "the layers between a model's first and last must have weights of the same shapes for a profile, "
                f"but those of layer {layer} are not those of layer {SHOWN_LAYER}"
            )
    places = [place for place, w in enumerate(trace.weights) if w.layer >= 0]
    found = []
    for place, (weight, cut) in enumerate(zip(trace.weights, other.weights, strict=True)):
        if weight.layer not in (-1, SHOWN_LAYER):
            continue
        dims = [i for i, (a, b) in enumerate(zip(weight.shape, cut.shape, strict=True)) if a != b]
        if weight.is_cut and not dims:  # one degree was run, and for that one any dimension will do
            dims = [0]
        shape = list(weight.shape)
        if tp > 1 and dims:
            shape[dims[0]] *= tp
        found.append(
            ProfiledWeight(
                layer=weight.layer == SHOWN_LAYER,
                is_first=weight.layer < 0 and (not places or place < places[0]),
                shape=tuple(shape),
                cut_dim=dims[0] if dims else -1,
            )
        )
    return tuple(found)


Mark = tuple[float, int]
"""Bytes in fp32 of a weight, and its number among those of its layer (or outside of the layers)."""
Levels = NDArray[np.float64]
"""(R,): bytes at the rows of a pass, see `profile_passes`"""


Arrivals = tuple[tuple[str, int, tuple[Mark, ...]], ...]
"""Of a backward pass: kind, layer (-1 outside of the layers) and marks of each segment."""
ForwardSegments = tuple[tuple[str, int], ...]
"""Of a forward pass: kind, and layer (-1 outside of the layers) of each segment."""


class WeightsInStep(Protocol):
    """Follows one step, pass by pass."""

    states_bytes: float
    """weights and optimizer states that live all the time"""
    weights_bytes: float
    """of these, the weights"""
    sends_in_last_pass: bool
    """whether gradients are sent during the last backward pass, not after it"""

    def forward(self, segments: ForwardSegments) -> Levels:
        """Of a forward pass through these segments."""

    def backward(self, *, first: bool, last: bool) -> Levels:
        """Of a backward pass, the `first` or `last` of the step, or neither."""

    def finish(self) -> float:
        """Highest level between the last backward pass and the next step."""
