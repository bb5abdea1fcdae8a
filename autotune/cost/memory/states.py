"""Weights, gradients and optimizer states of a rank, with the buffers to gather and reduce them.

Sharding follows ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5): optimizer states with
master weights (stage 1), gradients (stage 2) and weights (stage 3) are sharded over the
data-parallel ranks; with replicas (HSDP), over the ranks of one replica. Offloaded optimizer states
are on the host.

optimizer     bytes per weight in addition to the fp32 master weight
adamw         two moments in fp32 (8), or as the trainer keeps them       muon         one moment (4); adamw's for embeddings and the output projection
adamw_8bit    two moments in 8 bits with a scale per 256 (2.03)            adafactor    sums over rows and columns (4 (1/n + 1/k))        sgd    none

If nothing is kept in fp32 (`all_in_bf16`), weights and gradients take 2 bytes each, and moments
half of the above, except those in 8 bits.

With adapters, the model's weights are frozen (`trainable.py`) and have no gradients and states; the
adapters are trained in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, LayerWeights, Layout, layer_matmuls, layer_weights
from autotune.cost.time.compute import element_bytes
from autotune.cost.time.stalls import is_offloaded
from autotune.cost.trainable import (
    adapter_weights,
    frozen_bytes,
    frozen_edge_bytes,
    has_frozen_fp32,
)
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload

BF16_BYTES = 2.0
ADAPTER_BYTES = 16.0
"""bytes per weight of an adapter: weight, gradient and two moments in fp32"""
NARROW_BYTES = {"fp8": 2.0, "mxfp8": 2.0, "nvfp4": 1.125}
"""bytes per weight in both layouts; for nvfp4 with a scale of 8 bits per 16 values"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """Numbers of weights of one pipeline rank."""

    layers: Sequence[tuple[Column, LayerWeights]]
    """(number of layers, weights per layer) by kind of layer"""
    edge: Column
    """weights of its embedding and output projection"""

    @property
    def dense(self) -> Column:
        """Weights that are the same on all data-parallel ranks."""
        return np.asarray(sum(n * kind.dense for n, kind in self.layers) + self.edge)

    @property
    def experts(self) -> Column:
        """Weights of the rank's experts."""
        return np.asarray(sum(n * kind.experts for n, kind in self.layers))

    @property
    def widest(self) -> Column:
        """Weights of its largest layer."""
        return np.asarray(
            np.maximum.reduce(
                [np.where(n > 0, kind.dense + kind.experts, 0.0) for n, kind in self.layers]
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per weight on a rank, and numbers of shards; columns of shape (N,)."""

    size: Column
    """bytes of one activation element"""
    weight: Column
    """bytes of a weight of a layer"""
    edge_weight: Column
    """bytes of a weight of embedding or output projection"""
    gathered: Column
    """bytes of additional 16-bit copies that are whole on every rank"""
    gradient: Column
    """bytes of a gradient"""
    states: Column
    """bytes of optimizer states of a layer's weight"""
    edge_states: Column
    """bytes of optimizer states of a weight of embedding or output projection"""
    step: Column
    """bytes of a copy made by the optimizer's step, sharded like the states"""
    reduction: Column
    """bytes in a sharded reduction"""
    in_use: Column
    """bytes of a weight of a gathered layer"""
    buckets: Column
    """size of a bucket relative to one of fp32 gradients"""
    trained: Column
    """share of the layers' weights that have gradients"""
    trains_edges: bool
    """whether embedding and output projection have gradients"""
    zero: Column
    """ZeRO stage"""
    cuts_gradients: NDArray[np.bool_]
    """whether gradients are sharded at the peak"""
    may_cut_gradients: NDArray[np.bool_]
    """whether gradients are assumed whole although the program may shard them"""
    shards: Column
    """number of shards of dense weights"""
    expert_shards: Column
    """number of shards of experts"""
    gathers: NDArray[np.bool_]
    """whether layers are gathered one at a time (FSDP)"""

    def parts(self, rank: StageWeights) -> dict[str, Column]:
        """Return the bytes of weights, gradients and optimizer states."""
        whole = rank.dense + rank.experts
        sharded = rank.dense / self.shards + rank.experts / self.expert_shards
        edge = rank.edge * np.where(self.zero >= 1, 1.0 / self.shards, 1.0)
        states = (
            self.states * (np.where(self.zero >= 1, sharded, whole) - edge)
            + self.edge_states * edge
        )
        held = np.where(self.gathers, sharded, whole)
        ends = np.where(self.gathers, rank.edge / self.shards, rank.edge)
        return {
            "weights": self.weight * (held - ends)
            + self.edge_weight * ends
            + self.gathered * whole,
            "gradients": self.gradient * np.where(self.cuts_gradients, sharded, whole),
            "optimizer": states,
        }

    def unsure(self, rank: StageWeights) -> Column:
        """Return the bytes of gradients that are counted although the program may shard them."""
        if not self.may_cut_gradients.any():
            return np.zeros_like(self.gradient)
        sharded = rank.dense / self.shards + rank.experts / self.expert_shards
        return np.where(
            self.may_cut_gradients, self.gradient * (rank.dense + rank.experts - sharded), 0.0
        )

    def in_step(self, rank: StageWeights, traits: Traits) -> Column:
        """Return the bytes of reduced gradients and of temporary tensors during the optimizer's
        step, when activations and logits have been freed."""
        whole = rank.dense + rank.experts
        sharded = rank.dense / self.shards + rank.experts / self.expert_shards
        held = np.where(self.zero >= 1, sharded, whole)
        step = self.step * np.where(self.zero >= 3, np.minimum(held, traits.step_weights), held)
        return self.gradient * np.where(self.zero >= 2, sharded, whole) + step

    def buffers(self, rank: StageWeights, constants: Calibration, traits: Traits) -> Column:
        """Return the bytes of buffers for gathered layers and reductions.

        FSDP keeps embedding and output projection gathered (and their gradients whole, if they form
        one unit), gathers a layer while the previous one is in use, and reduces its whole
        gradients. Frozen weights are gathered in the format in which they are kept, at most 16
        bits, and have no gradients.
        """
        edges = (2.0 if traits.one_edge_unit and self.trains_edges else 1.0) * self.size * rank.edge
        gradients = self.trained * (self.size + self.reduction)
        working = edges + (2.0 * self.in_use + gradients) * rank.widest
        whole = self.trained * (rank.dense + rank.experts)
        reduced = constants.buffer_bytes * self.buckets * whole + 4.0 * np.minimum(
            whole, traits.bucket_weights
        )
        return np.where(self.shards > 1, np.where(self.gathers, working, reduced), 0.0)


def state_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, traits: Traits
) -> StateBytes:
    """Return the bytes per weight for every row, by its precision and ZeRO stage and the workload's
    optimizer."""
    size, zero = element_bytes(table), layout.zero
    mixed = size < 4
    master = mixed & traits.master_weights
    layer_moments, edge_moments = _moments(workload, traits)
    away = is_offloaded(table, "optimizer")
    main = np.where(master, 4.0, 0.0)
    root = layer_moments / 2.0 if traits.foreach and workload.optimizer == "adamw" else 0.0
    fsdp = shards_weights(layout, traits)
    # for fp32 weights, ZeRO-2 keeps 16-bit copies of all of them gathered, and autocast keeps its
    # casts until the backward pass
    cast = np.where(
        mixed & (not traits.master_weights),
        np.where(zero == 2, 2.0, np.where(zero < 2, 2.0 * traits.casts_weights, 0.0)),
        0.0,
    )
    weight = np.where(master, _weight_bytes(table, traits), 4.0)
    values = {
        "weight": weight,
        "edge_weight": weight,
        "gathered": cast,
        "gradient": np.where(master, _gradient_bytes(table, traits), 4.0),
        "states": layer_moments + main,
        "edge_states": edge_moments + main,
        "step": np.where(away, 0.0, np.where(master, traits.step_bytes, 0.0) + root),
    }
    in_use, trained, buckets = size, np.ones_like(size), np.ones_like(size)
    if workload.pure_bf16:
        pure = dict.fromkeys(("weight", "edge_weight"), np.full_like(size, BF16_BYTES))
        waiting = fsdp & ~cuts_gradients(layout, traits)
        pure["gradient"] = np.where(waiting, traits.pure_reduce_bytes, BF16_BYTES)
        moments = 1.0 if workload.optimizer == "adamw_8bit" else 0.5
        pure |= {name: moments * (values[name] - main) for name in ("states", "edge_states")}
        pure["gathered"] = np.where(fsdp & (zero == 2), BF16_BYTES, 0.0)
        pure["step"] = np.where(away, 0.0, root / 2.0)
        is_pure = all_in_bf16(workload, layout)
        buckets = np.where(is_pure, 0.5, 1.0)
        values = {name: np.where(is_pure, pure[name], value) for name, value in values.items()}
    if workload.peft is not None:
        adapter = ADAPTER_BYTES / 2.0 if workload.pure_bf16 else ADAPTER_BYTES
        trained = _adapter_share(workload, layout)
        kept = np.where(away, adapter / 2.0, adapter) * trained
        in_use = min(frozen_bytes(workload), BF16_BYTES) + adapter / 4.0 * trained
        frozen = {
            "weight": frozen_bytes(workload) + kept,
            "edge_weight": frozen_edge_bytes(workload, table, traits),
            # FSDP under ZeRO-2 keeps the layers gathered, in their frozen format
            "gathered": np.where(fsdp & (zero == 2), min(frozen_bytes(workload), BF16_BYTES), 0.0),
        }
        if has_frozen_fp32(workload):  # the casts of layers that are not recomputed
            is_cast = mixed & (zero < 2) & ~table.is_word("recompute", "full")
            frozen["gathered"] = np.where(is_cast, BF16_BYTES, frozen["gathered"])
        values = {**dict.fromkeys(values, np.zeros_like(size)), **frozen}
    values |= {name: np.where(away, 0.0, values[name]) for name in ("states", "edge_states")}
    cut = cuts_gradients(layout, traits)
    return StateBytes(
        **values,
        size=size,
        reduction=reduction_bytes(workload, table, traits),
        in_use=in_use,
        buckets=buckets,
        trained=trained,
        trains_edges=workload.peft is None,
        zero=zero,
        cuts_gradients=cut,
        may_cut_gradients=(zero >= 2) & ~cut & traits.may_reduce_each,
        shards=layout.shard_group.size,
        expert_shards=layout.expert_shard_group.size,
        gathers=fsdp,
    )


def shards_weights(layout: Layout, traits: Traits) -> NDArray[np.bool_]:
    """Return whether each rank keeps only its shard of the weights: under ZeRO-3, and under ZeRO-2
    with FSDP, which keeps them gathered from the forward to the backward pass."""
    return (layout.zero >= 3) | ((layout.zero >= 2) & (not traits.master_weights))


def all_in_bf16(workload: Workload, layout: Layout) -> NDArray[np.bool_]:
    """Return whether no weight, gradient or moment is kept in fp32."""
    return np.full(layout.zero.shape, workload.pure_bf16) & ~(
        workload.shards_in_fp32 & (layout.zero >= 1)
    )


def reduction_bytes(workload: Workload, table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes per weight in the gradient reduction."""
    if workload.pure_bf16:
        return np.full(len(table), traits.pure_reduce_bytes)
    half = np.where(
        table.is_word("precision", "fp16"), traits.fp16_reduce_bytes, traits.reduce_bytes
    )
    return np.where(element_bytes(table) < 4, half, 4.0)


def cuts_gradients(layout: Layout, traits: Traits) -> NDArray[np.bool_]:
    """Return whether gradients are reduced and sharded after each micro-batch, so that no rank
    keeps whole ones."""
    waits = {
        "each": False,
        "last": layout.accumulation > 1,
        "pipeline": (layout.accumulation > 1) & (layout.pp > 1),
        "end": layout.zero < 3,
    }[traits.reduction]
    return np.asarray((layout.zero >= 2) & ~np.asarray(waits))


def _adapter_share(workload: Workload, layout: Layout) -> Column:
    """Return the trained weights of the adapters relative to the layers' weights on a rank."""
    if workload.peft is None:
        return np.ones_like(layout.tp)
    trained = sum(adapter_weights(workload.model, workload.peft, layout))
    return np.asarray(trained / sum(layer_weights(workload.model, layout)))


def _weight_bytes(table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes of a weight in addition to its fp32 master."""
    size = np.full(len(table), 2.0)
    for precision, narrow in NARROW_BYTES.items():
        held = {
            "none": 2.0,
            "beside": 2.0 + narrow,
            "primary": narrow if narrow >= 2.0 else 2.0 + narrow,
        }
        size = np.where(table.is_word("precision", precision), held[traits.narrow_weights], size)
    return size


def _gradient_bytes(table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes of a gradient with fp32 master weights. The buffer itself is reduced, which
    limits its size under fp16."""
    halved = min(traits.gradient_bytes, traits.fp16_reduce_bytes)
    return np.where(table.is_word("precision", "fp16"), halved, traits.gradient_bytes)


def _moments(workload: Workload, traits: Traits) -> tuple[float, float]:
    """Return the bytes of the optimizer's moments per weight of (a layer, an embedding or output
    projection)."""
    if workload.optimizer == "adafactor":
        matrices = [
            (m.n * m.k * m.share, 4.0 * (m.n + m.k) * m.share)
            for m in layer_matmuls(workload.model)
        ]
        model = workload.model
        return (
            sum(sums for _, sums in matrices) / sum(weights for weights, _ in matrices),
            4.0 * (1.0 / model.vocab_size + 1.0 / model.hidden_size),
        )
    return {
        "adamw": (traits.moment_bytes, traits.moment_bytes),
        "adamw_8bit": (2.0 + 2.0 * 4.0 / 256.0, 2.0 + 2.0 * 4.0 / 256.0),
        "muon": (4.0, traits.moment_bytes),
        "sgd": (0.0, 0.0),
    }[workload.optimizer]
