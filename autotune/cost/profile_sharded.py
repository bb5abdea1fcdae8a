"""Memory of sharded weights over a step (ZeRO 2 and 3), from their shapes alone.

    d ranks that divide shards    g bytes of a gathered weight (2 in 16 bits, 4 in fp32)

It follows FSDP2 (`torch.distributed.fsdp`, Zhao et al. 2023, arXiv:2304.11277): a layer is gathered into one buffer and copied out of it, and the buffer of
the layer before is freed then; in the backward pass the next layer is gathered while one runs; gradients are reduced in fp32, layer by layer, through a
buffer that lives until the next layer's. Micro-batches before the last keep whole gradients in fp32.

A pipeline (`torch.distributed.pipelining`) leaves all weights gathered after every backward pass, keeps whole gradients of all micro-batches, and reduces them
one after the other at the end of the step: those outside of the layers first, then layer by layer.

A single rank gathers nothing: it copies its weights one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile_weights import Arrivals, ForwardSegments, Levels, Mark, RankShapes

MARGIN = 2
"""layers at the end of a pass that are run one by one: the last gathers no other ahead"""


@final
class ShardedInStep:
    """ZeRO 2 and 3."""

    def __init__(
        self,
        shapes: RankShapes,
        arrivals: Mapping[bool, Arrivals],
        *,
        zero_stage: int,
        cut_in: int,
        shards: int,
        single: bool,
        in_pipeline: bool,
        element_bytes: int,
        moment_bytes: int,
    ) -> None:
        """`arrivals`: of the first backward pass of a step (True) and of later ones. `cut_in`: tensor-parallel ranks. `single`: whether a step has one
        micro-batch. `in_pipeline`: whether the rank is one of several stages."""
        self.sends_in_last_pass = not in_pipeline
        self._frees, self._single, self._in_pipeline = zero_stage == 3, single and not in_pipeline, in_pipeline
        self._size, self._cut_in = element_bytes, cut_in
        self._layers, self._arrivals = shapes.layers, arrivals
        edges = (*shapes.first, *shapes.last)
        self._whole = {True: sum(w.padded(shards) for w in edges), False: sum(w.padded(shards) for w in shapes.layer)}
        self._shards = shards
        self._level = 0.0
        self._gathered = False
        """whether all weights are gathered before a pass"""
        self._reducing = 0.0
        """the buffer of the last reduction"""
        self._own = {True: 0.0, False: 0.0}
        """gradients of the present pass in the gathered format, of the edges and of the present layer"""
        self._kept = {True: 0.0, False: 0.0}
        """whole gradients in fp32 that a pipeline keeps until the end of the step, of the edges and of each layer"""
        cut = (self._whole[True] + self._layers * self._whole[False]) / shards
        self.weights_bytes = 4.0 * cut
        self.states_bytes = 4.0 * cut + moment_bytes * cut
        self._numels = {True: [w.numel for w in edges], False: [w.numel for w in shapes.layer]}
        self._gradients_bytes = {edge: _in_order(arrivals[True], edge=edge) for edge in (True, False)}
        """of each gradient in fp32, in the order of the weights; one may be whole though its weight is cut"""

    def _buffers(self, edge: bool) -> tuple[float, float, float]:
        """(bytes that are sent, gathered buffer, weights copied out of it)."""
        whole = float(self._size * self._whole[edge])
        if self._shards == 1:
            return 0.0, 0.0, whole
        return whole / self._shards if self._size < 4 else 0.0, whole, whole

    def forward(self, segments: ForwardSegments) -> Levels:
        """See `WeightsInStep`."""
        begins = self._forward("pre", -1) if not segments or segments[0][0] != "pre" else []
        rows = self._pass(segments, self._forward)
        rows[:1] = max([*begins, *rows[:1]])
        if not any(kind == "head" for kind, _ in segments):
            self._forward("head", -1)
        return rows

    def backward(self, *, first: bool, last: bool) -> Levels:
        """See `WeightsInStep`."""
        arrivals = self._arrivals[first]
        marks = {(kind, layer): each for kind, layer, each in arrivals}

        def run(kind: str, layer: int) -> list[float]:
            return self._backward(kind, layer, marks[kind, layer], first=first, last=last)

        kinds = [kind for kind, _, _ in arrivals]
        begins = 0.0 if "loss_backward" in kinds else max(self._gather_edges(), self._next_layer(self._layers - 1))
        rows = self._pass([(kind, layer) for kind, layer, _ in arrivals], run)
        rows[:1] = np.maximum(rows[:1], begins)
        if "end" not in kinds:
            rows[-1:] = np.maximum(rows[-1:], self._reduce(True, first=first, last=last))
        self._gathered = self._in_pipeline or not (self._frees or last)
        return rows

    def _pass(self, segments: Sequence[tuple[str, int]], run: Callable[[str, int], list[float]]) -> Levels:
        """Runs the segments one after the other. Layers in the middle of alike ones do what their neighbour did, so they are not run but repeated."""
        found, place, known = list[NDArray[np.float64]](), 0, (np.zeros(0), 0.0)
        while place < len(segments):
            kind, layer = segments[place]
            start = self._level
            rows = np.array(run(kind, layer)) - start
            found.append(rows + start)
            place += 1
            same = len(rows) == len(known[0]) and (rows == known[0]).all() and self._level - start == known[1]
            known = rows, self._level - start
            alike = 0
            while same and place + alike + MARGIN < len(segments) and segments[place + alike + MARGIN][0] == kind:
                alike += 1
            if alike:
                steps = self._level + known[1] * np.arange(alike)
                found.append((steps[:, None] + rows).ravel())
                self._level += known[1] * alike
                place += alike
        return np.concatenate(found) if found else np.zeros(0)

    def _forward(self, kind: str, layer: int) -> list[float]:
        edge = kind != "layer"
        sent, buffer, weights = self._buffers(edge)
        before = self._level
        if kind in ("pre", "layer") and not self._gathered:
            ahead = 0.0 if kind == "pre" else self._buffers(layer == 0)[1]
            before = max(self._level + sent + buffer, self._level + buffer + weights)
            self._level += buffer + weights - ahead
        level = self._level
        after = level
        if kind == "layer" and self._frees:
            self._level -= weights
        if kind == "head":
            if self._frees:
                self._level -= weights
            if not self._gathered:
                self._level -= self._buffers(self._layers == 0)[1]
            self._gathered = not self._frees
        return [before, level, after]

    def _backward(self, kind: str, layer: int, marks: Sequence[Mark], *, first: bool, last: bool) -> list[float]:
        edge = kind != "layer_backward"
        before = self._level
        parts, at_marks = [self._level], []
        for size, _ in marks:
            gradient = size * self._size / 4.0
            # in fp32 later gradients are added to those that are there
            if self._size < 4 or first:
                self._level += gradient
                self._own[edge] += gradient
            at_marks.append(self._level)
            parts.append(self._level)
        after = self._level
        if kind == "loss_backward":
            after = max(after, self._gather_edges())
        if kind == "head_backward":
            after = max(after, self._next_layer(self._layers - 1))
        if kind == "layer_backward":
            after = max(after, self._reduce(False, first=first, last=last))
            after = max(after, self._next_layer(layer - 1))
        if kind == "end":
            after = max(after, self._reduce(True, first=first, last=last))
            if last:
                self._level -= self._reducing
                self._reducing = 0.0
        return [before, *parts, *at_marks, after]

    def _gather_edges(self) -> float:
        """Gathers what is outside of the layers for a backward pass, and starts on the last layer; the highest level meanwhile."""
        if self._gathered:
            return self._level
        sent, buffer, weights = self._buffers(True)
        highest = max(self._level + sent + buffer, self._level + buffer + weights)
        self._level += weights
        return max(highest, self._gather_ahead(self._layers - 1))

    def _gather_ahead(self, layer: int) -> float:
        """Starts to gather a layer; the highest level meanwhile."""
        if layer < 0 or self._gathered:
            return self._level
        sent, buffer, _ = self._buffers(False)
        self._level += buffer
        return self._level + sent

    def _next_layer(self, layer: int) -> float:
        """Copies out what was gathered for a layer and starts on the one before it."""
        if layer < 0 or self._gathered:
            return self._level
        _, buffer, weights = self._buffers(False)
        highest = self._level + weights
        self._level += weights - buffer
        return max(highest, self._gather_ahead(layer - 1))

    def _reduce(self, edge: bool, *, first: bool, last: bool) -> float:
        """After a layer's backward pass: its gradients are kept in fp32, or reduced in the last pass."""
        own, self._own[edge] = self._own[edge], 0.0
        in_fp32 = own * 4.0 / self._size
        highest = self._level
        if not last:
            if self._frees and not self._in_pipeline:
                self._level -= self._size * self._whole[edge]
            if self._size < 4:
                level = self._level
                for in_fp32_bytes in self._gradients_bytes[edge] if first else ():  # one weight after the other
                    highest = max(highest, level + in_fp32_bytes)
                    level += in_fp32_bytes * (1.0 - self._size / 4.0)
                self._level += (in_fp32 if first else 0.0) - own
            if first:
                self._kept[edge] = in_fp32
            return highest
        if not self._single:
            if self._size < 4:  # added to what is kept
                self._level -= own
                own = in_fp32
            elif not first:
                own = self._gradients(edge)
        return max(highest, self._send(edge, own, single=self._single))

    def _send(self, edge: bool, own: float, *, single: bool) -> float:
        """Reduces gradients of so many bytes and frees what was gathered; the highest level meanwhile. `single`: they are in the gathered format."""
        highest, local = self._level, (self._size / 4.0 if single else 1.0) * self._gradients(edge)
        if own > local:
            # a whole gradient of a cut weight is summed over the ranks first, t times as large as this rank's part of it
            highest = max(highest, self._level + (own - local) / (self._cut_in - 1))
            self._level += local - own
            own = local
        self._level -= float(self._size * self._whole[edge]) + self._reducing
        self._reducing = 4.0 * self._whole[edge]
        last_one = self._numels[edge][-1] * (own / sum(self._numels[edge])) if self._numels[edge] else 0.0
        highest = max(highest, self._level + self._reducing)
        if self._shards == 1:  # the buffer is divided into another one, which is copied
            highest = max(highest, self._level + 3.0 * self._reducing - own)
        highest = max(highest, self._level + self._reducing * (1.0 + 1.0 / self._shards) - own + last_one)
        self._level += self._reducing - own + self._reducing / self._shards
        return max(highest, self._level)

    def _gradients(self, edge: bool) -> float:
        """Bytes of the gradients of a rank's weights in fp32."""
        return 4.0 * float(sum(self._numels[edge]))

    def finish(self) -> float:
        """See `WeightsInStep`."""
        if not self._in_pipeline:
            return self._level
        highest = self._send(True, self._kept[True], single=False)
        for _ in range(self._layers):
            highest = max(highest, self._send(False, self._kept[False], single=False))
        self._level -= self._reducing
        self._reducing = 0.0
        return highest


def _in_order(arrivals: Arrivals, *, edge: bool) -> list[float]:
    """Bytes of the gradients of the edges, or of a layer: those that arrive last belong to the first weights."""
    found: dict[int, list[float]] = {}
    for kind, layer, marks in arrivals:
        if (kind != "layer_backward") == edge:
            found.setdefault(layer, []).extend(size for size, _ in marks)
    return next(iter(found.values()), [])[::-1]
