"""Peak memory of the pipeline rank with the highest peak, by part.

states        weights, gradients and optimizer states (`memory/states.py`)
activations   of the layers for every micro-batch in flight, except what is recomputed or offloaded (`activations.py`)
logits        of the output projection and the loss, on the last rank (`memory/loss.py`)
framework     buffers of collectives, gathered weights, placeholders, workspaces, and the difference between reserved and allocated memory. CUDA graphs have
              separate workspaces, and graphs of layers a separate input for every micro-batch in flight

The last rank's peak is at the loss, when all activations are kept, or in the backward pass of its
last layer, whichever is higher. The first, the largest middle and the last rank are computed.
Layers without experts are the first ones of the model, and so on the first rank.

With gradients that the step frees (`Traits.drops_gradients`) and a single micro-batch, gradients
are created in the backward pass while activations and logits are freed; the larger of both counts.

The peak is the memory that the allocator reserves. Less must fit at once: the allocator releases
unused blocks before it fails, and memory that is freed but still waits for the communication stream
can be reused. Weights, gradients and states are allocated permanently, without fragmentation.
Activations and logits are allocated repeatedly, and the share of fragmentation of their blocks
cannot be released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, LayerWeights, Layout, Stages, edge_weights, weights_of_kind
from autotune.cost.learn.uncertainty import TAIL, exceeds, interval
from autotune.cost.memory.activations import kept_bytes, layer_activations, on_device
from autotune.cost.memory.loss import loss_bytes
from autotune.cost.memory.states import StageWeights, StateBytes, state_bytes
from autotune.cost.time.compute import CORNER, element_bytes, layer_forward_s, layer_host_s
from autotune.cost.time.pipeline import in_flight
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, GpuSpec, MemoryParts, Workload

HOLDS = 0.25
"""assumed probability that a program holds memory about which nothing is known. Loops of libraries
that do are known by name (`traits.TRAITS`, `Workload.loop`); none of the published user programs
that were examined did"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak memory of one pipeline rank for every row, bytes."""

    parts: MemoryParts
    """peak by cause; memory that waits for the communication stream and fragmentation are part of
    `framework`"""
    spare: Column
    """the part of the peak that the allocator can reuse before it fails"""
    unsure: Column | float = 0.0
    """the part of the peak that the program may not need, because it is unknown whether it holds
    it"""

    @property
    def needed(self) -> Column:
        """Bytes that must fit at once, including `unsure` ones."""
        return np.asarray(self.parts.total - self.spare)

    @property
    def least(self) -> Column:
        """Bytes that must fit at once, without `unsure` ones."""
        return np.asarray(self.needed - self.unsure)

    def risk(self, usable: float, spread: Column | float) -> Column:
        """Return the probability that more than `usable` bytes are needed. The program holds the
        `unsure` bytes with the probability `HOLDS`. `spread`: standard deviation of ln peak
        memory."""
        least = exceeds(self.least, usable, spread)
        if not np.any(self.unsure):
            return least
        return (1.0 - HOLDS) * least + HOLDS * exceeds(self.needed, usable, spread)

    def columns(self, spread: Column, gpu: GpuSpec, constants: Calibration) -> dict[str, Any]:
        """Return the memory fields of an `Estimate`. `spread`: standard deviation of ln peak
        memory.

        If the minimum that is needed fits, the observed peak cannot exceed the GPU's memory, so the
        peak is limited to it. Every part is reduced by the same factor, because it is unknown which
        of them is smaller. The upper end of the interval is limited likewise."""
        usable, parts, peak = (
            gpu.memory_bytes * constants.usable_fraction,
            self.parts,
            np.asarray(self.parts.total),
        )
        spared = (peak > gpu.memory_bytes) & (self.least <= usable)
        if spared.any():
            factor = np.where(spared, gpu.memory_bytes / peak, 1.0)
            parts = MemoryParts(
                **{f.name: getattr(parts, f.name) * factor for f in fields(MemoryParts)}
            )
            peak = np.where(spared, gpu.memory_bytes, peak)
        low, high = interval(peak, spread)
        risk = self.risk(usable, spread)
        high = np.where(risk <= TAIL, np.minimum(high, gpu.memory_bytes), high)
        return {
            "peak_memory_bytes": peak,
            "peak_memory_low_bytes": low,
            "peak_memory_high_bytes": high,
            "memory_parts_bytes": parts,
            "oom_probability": risk,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of layer: dense, or with experts."""

    weights: LayerWeights
    kept: Column
    """activations of one layer per micro-batch in flight, bytes"""
    once: Column
    """additional memory during the backward pass of one layer, bytes"""
    boundary: Column
    """input of a layer, bytes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One pipeline rank of every row."""

    number: Column
    """index in the pipeline, from 0"""
    layers: Column
    """number of layers"""
    dense: Column
    """number of layers without experts, in a model in which others have experts"""
    edge: Column
    """number of weights of embedding and output projection"""
    head: Column
    """number of weights of the output projection; 0 on ranks without the loss"""


def rank_memories(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    stages: Stages,
    constants: Calibration,
    traits: Traits,
) -> tuple[RankMemory, RankMemory, RankMemory]:
    """Return the memory of the first, the largest middle and the last rank; without a pipeline, all
    are the same rank."""
    with_experts = (
        (False, True) if workload.model.num_dense_layers else (workload.model.num_experts > 0,)
    )
    logits, fewer_logits = loss_bytes(workload, table, layout, traits)
    of_ranks = _MemoryOfRanks(
        workload=workload,
        table=table,
        layout=layout,
        constants=constants,
        traits=traits,
        kinds=[
            _kind(workload, table, layout, constants, traits, experts) for experts in with_experts
        ],
        states=state_bytes(workload, table, layout, traits),
        logits=logits,
        fewer_logits=fewer_logits,
        waiting=_waiting_bytes(workload, table, layout, constants, traits),
    )
    embedding, projection = edge_weights(workload.model, layout, traits.vocab_parallel)
    nothing, alone = np.zeros_like(layout.pp), layout.pp == 1
    first_dense = np.minimum(float(workload.model.num_dense_layers), stages.first)
    # tied weights are those of the embedding
    head = np.where(projection > 0, projection, embedding)
    first = _Rank(
        number=nothing,
        layers=stages.first,
        dense=first_dense,
        edge=embedding + np.where(alone, projection, 0.0),
        head=np.where(alone, head, 0.0),
    )
    middle = _Rank(
        number=np.minimum(1.0, layout.pp - 1),
        layers=stages.middle,
        dense=nothing,
        edge=nothing,
        head=nothing,
    )
    last = _Rank(
        number=layout.pp - 1,
        layers=stages.last,
        dense=np.where(alone, first_dense, 0.0),
        edge=projection + np.where(alone, embedding, 0.0),
        head=head,
    )
    return of_ranks.memory(first), of_ranks.memory(middle), of_ranks.memory(last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryOfRanks:
    """Computes the memory of pipeline ranks."""

    workload: Workload
    table: ConfigTable
    layout: Layout
    constants: Calibration
    traits: Traits
    kinds: Sequence[_Kind]
    states: StateBytes
    logits: Column
    """memory of the loss, bytes"""
    fewer_logits: Column
    """the same for a program that splits the logits"""
    waiting: Column
    """size of one gathered input times the share of them that wait, bytes (`_waiting_bytes`)"""

    def memory(self, rank: _Rank) -> RankMemory:
        """Return the peak of a rank, including memory that the allocator reserves but has not
        allocated."""
        constants, table, counts = self.constants, self.table, self._counts(rank)
        own = StageWeights(
            layers=[(n, kind.weights) for n, kind in zip(counts, self.kinds, strict=True)],
            edge=rank.edge,
        )
        held = in_flight(table, self.layout, rank.number)
        parts = self._at_loss(rank, own, held, self.logits)
        unsure_logits: Column | float = 0.0
        if self.traits.may_cut_logits:
            fewer = self._at_loss(rank, own, held, self.fewer_logits)
            unsure_logits = sum(parts.values()) - sum(fewer.values())
        buffers = self.states.buffers(own, constants, self.traits)
        # FSDP frees gathered weights before the step; ZeRO keeps its buckets
        freed = np.where(self.states.gathers & (not self.traits.master_weights), buffers, 0.0)
        available = sum(parts[name] for name in ("gradients", "activations", "logits")) + freed
        in_step = self.states.in_step(own, self.traits)
        parts["optimizer"] = parts["optimizer"] + np.maximum(in_step - available, 0.0)
        framework = self._framework(rank) + buffers
        static = sum(n * kind.boundary for n, kind in zip(counts, self.kinds, strict=True))
        framework = framework + np.where(table.is_word("cuda_graph", "layers"), held * static, 0.0)
        allocated = framework + sum(parts.values())
        waiting = self._waiting_of(rank, held, allocated)
        fragmentation = 0.0 if self.traits.expandable_segments else constants.fragmentation
        fragments = fragmentation * allocated
        unreleasable = fragmentation * (parts["activations"] + parts["logits"])
        return RankMemory(
            parts=MemoryParts(**parts, framework=framework + waiting + fragments),
            spare=waiting + fragments - unreleasable,
            unsure=unsure_logits + self.states.unsure(own),
        )

    def _counts(self, rank: _Rank) -> Sequence[Column]:
        """Return the number of layers of each kind."""
        sparse = rank.layers - rank.dense
        return (sparse,) if len(self.kinds) == 1 else (rank.dense, sparse)

    def _at_loss(
        self, rank: _Rank, own: StageWeights, held: Column, loss: Column
    ) -> dict[str, Column]:
        """Return the memory parts at the peak, bytes. `loss`: memory of the loss, bytes; `held`:
        micro-batches in flight."""
        kinds = list(zip(self._counts(rank), self.kinds, strict=True))
        saved = sum(on_device(self.table, n, held) * kind.kept for n, kind in kinds)
        once = np.maximum.reduce([np.where(n > 0, kind.once, 0.0) for n, kind in kinds])
        final_norm, has_loss = 2.0 * self.kinds[-1].boundary, rank.head > 0
        at_loss = np.where(has_loss, loss + final_norm + self._placeholder * rank.head, 0.0)
        kept = saved + np.where(has_loss, final_norm, 0.0) + np.maximum(once - at_loss, 0.0)
        parts = self.states.parts(own)
        parts |= {
            "activations": self.constants.activation_factor * kept,
            "logits": np.where(has_loss, loss, 0.0),
        }
        starts_without_gradients = self.traits.drops_gradients & (self.layout.accumulation == 1)
        freed = np.where(starts_without_gradients, parts["activations"] + parts["logits"], 0.0)
        return parts | {"gradients": np.maximum(parts["gradients"] - freed, 0.0)}

    @property
    def _placeholder(self) -> Column:
        """Bytes per weight of placeholder gradients (`Traits.placeholder_gradients`)."""
        size = element_bytes(self.table)
        if not self.traits.placeholder_gradients:
            return np.zeros_like(size)
        return np.where(size < 4, 2.0, 0.0)

    def _framework(self, rank: _Rank) -> Column:
        """Return the memory of the framework, with the pools of CUDA graphs and placeholder
        gradients, bytes."""
        kinds = list(zip(self._counts(rank), self.kinds, strict=True))
        shapes = sum(np.where(n > 0, kind.weights.shapes, 0.0) for n, kind in kinds)
        graph = ~self.table.is_word("cuda_graph", "none")
        pools = self.constants.framework_bytes * np.where(graph, 2.0, 1.0)
        return np.asarray(pools + self._placeholder * (rank.head + shapes))

    def _waiting_of(self, rank: _Rank, held: Column, allocated: Column) -> Column:
        """Return the freed memory that still waits for other streams, limited to the free memory,
        bytes."""
        constants = self.constants
        usable = self.workload.cluster.gpu.memory_bytes * constants.usable_fraction
        in_layers = constants.waiting_in_layer * held * rank.layers
        freed = (in_layers + constants.waiting_at_head * (rank.head > 0)) * self.waiting
        return np.asarray(np.minimum(freed, np.maximum(usable - allocated, 0.0)))


def _kind(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    experts: bool,
) -> _Kind:
    layer = layer_activations(workload, table, layout, constants, traits, experts=experts)
    kept, once = kept_bytes(workload, table, layout, traits, layer, experts=experts)
    return _Kind(
        weights=weights_of_kind(workload.model, layout, experts=experts),
        kept=layout.tokens * kept,
        once=layout.tokens * once,
        boundary=layout.tokens * layer.boundary,
    )


def fullest(ranks: Sequence[RankMemory]) -> RankMemory:
    """Return for every row the rank with the highest peak. Its `spare` and `unsure` are set such
    that `needed` and `least` are the maxima over all ranks."""
    totals = np.stack([rank.parts.total for rank in ranks])
    most = totals.argmax(axis=0)[None]
    names = [f.name for f in fields(MemoryParts)]
    chosen = {
        n: np.take_along_axis(np.stack([getattr(r.parts, n) for r in ranks]), most, axis=0)[0]
        for n in names
    }
    needed, least = (
        np.max(rows, axis=0) for rows in ([r.needed for r in ranks], [r.least for r in ranks])
    )
    return RankMemory(
        parts=MemoryParts(**chosen), spare=totals.max(axis=0) - needed, unsure=needed - least
    )


def _waiting_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Return the size of one gathered input times the share of such inputs that wait for the
    communication stream after they are freed, bytes.

    The memory of a tensor that another stream used can be reused only after that stream has
    finished with it (`Tensor.record_stream`). So the further the host runs ahead of the device, the
    more inputs stay reserved. Without a pipeline, the host runs ahead until the end of the step.
    With a pipeline of p ranks, the first rank launches p - 1 micro-batches before it waits; it runs
    ahead if their kernels take longer than the launch of one layer. In a step of a single
    micro-batch, half as many inputs wait.
    """
    if constants.waiting_in_layer == 0 and constants.waiting_at_head == 0:
        return np.zeros_like(layout.tp)
    whole = np.where(
        layout.sequence_parallel,
        layout.tokens * element_bytes(table) * workload.model.hidden_size,
        0.0,
    )
    kernels = sum(layer_forward_s(workload, table, layout, constants, traits))
    host = layer_host_s(table, layout, constants) / 3.0
    ratio = (kernels * np.maximum(layout.pp - 1.0, 1.0) / np.maximum(host, 1e-9)) ** CORNER
    ahead = np.where(layout.pp > 1, ratio / (1.0 + ratio), 1.0)
    return whole * ahead * np.where(layout.accumulation > 1, 1.0, 0.5)
