"""Time of one layer for one micro-batch on one rank: its kernels, its exposed communication, and
the host time to launch both.

Additional host time for one layer and micro-batch, in units of a plain layer's forward and backward
pass (`layer_host_s`):

    adapters     for each matrix dropout, two products, a scaling and a sum, and their gradients (`ADAPTER`); with 4-bit weights their unpacking (`UNPACKING`)
    recompute    a repeated forward pass, and the overhead of the checkpoint: saved tensors, hooks, states of random generators (`Traits.checkpoint_host`)
    ZeRO-3       hooks before and after every module, which gather and release its weights one by one (`Traits.shard_hooks`: DeepSpeed)

Measured on one CPU core with layers of Llama's form so narrow that nothing but the host counts
(`python -m research.host_launches`: transformers, PEFT, bitsandbytes, DeepSpeed); FSDP beside a
process group that moves nothing (2.0, 2.8 to 3.3 times a plain layer with it). Assumed: a GPU's
launches cost as much more in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Layout, attended_len, layer_matmuls, layer_weights
from autotune.cost.learn.from_dry_runs import product_factor
from autotune.cost.memory.activations import mean_kept_bytes
from autotune.cost.time.compute import (
    BACKWARD_SCORES,
    element_bytes,
    exposed,
    keeps_scores,
    layer_forward_s,
    layer_host_s,
    smooth_maximum,
)
from autotune.cost.time.experts import (
    FORWARD_LAUNCHES,
    expert_host_s,
    expert_layer_s,
    gradient_bytes,
)
from autotune.cost.time.recompute import Repeated, repeated
from autotune.cost.time.stalls import is_offloaded, offloaded_layer_s
from autotune.cost.time.traffic import context_s, hidden_rings_s, ring_scores_s, tensor_layer_s
from autotune.cost.trainable import adapters_forward_s, adapters_moved_s, apart, unpacking_s
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, ModelSpec, Workload

ADAPTER = 0.09
"""host time of one adapter, in the units above"""
UNPACKING = 0.19
"""host time to unpack one 4-bit matrix, forward and backward, in the units above"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one layer's forward and backward pass for one micro-batch, by cause."""

    compute: Column
    """everything except communication"""
    tensor: Column
    context: Column
    expert: Column

    @property
    def total(self) -> Column:
        """Seconds of all causes together."""
        return self.compute + self.tensor + self.context + self.expert


def layer_time(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> LayerTime:
    """Return the time of one layer in every row.

    The host launches both kernels and collectives, so a layer takes at least the time that the host
    needs to launch it.
    """
    model, is_cpu = workload.model, workload.cluster.gpu.is_cpu
    matmuls, attention, moved = layer_forward_s(workload, table, layout, constants, traits)
    matmuls = product_factor(workload, constants) * matmuls
    again = repeated(model, table, layout, traits, attended_len(workload))
    backward_scores = 2.0 if keeps_scores(workload, traits) else BACKWARD_SCORES
    scores = (1.0 + backward_scores + again.scores) * attention
    scores = ring_scores_s(workload, table, layout, constants, scores, again.scores)
    products = _products_s(workload, layout, constants, matmuls, again)
    kernels = products + (3.0 + again.moved) * moved + scores
    forward, backward = adapters_moved_s(workload, table, layout, constants, traits)
    kernels = kernels + (1.0 + again.matmuls) * forward + backward
    tensor = tensor_layer_s(workload, table, layout, constants, again.collectives)
    if traits.async_linear and workload.peft is None and not model.num_experts:
        tensor = tensor - hidden_rings_s(workload, layout, tensor, again.collectives, matmuls)
    if table.async_tp.any():  # one piece per rank, of which one is not hidden
        hidden = traits.async_tp_hidden * (1.0 - 1.0 / layout.tp)
        tensor = np.where(table.async_tp, exposed(tensor, products, hidden), tensor)
    context = context_s(workload, table, layout, constants, traits, again.scores, scores)
    expert = np.zeros_like(layout.tp)
    if model.num_experts:
        if workload.peft is None:
            rate = workload.cluster.gpu.memory_bytes_per_s * constants.memory_efficiency
            kernels = kernels + gradient_bytes(model, layout, traits) / rate
        sent = expert_layer_s(
            workload, table, layout, constants, traits, again.dispatches, element_bytes(table)
        )
        expert = np.where(
            table.ep_overlap, exposed(sent, kernels, constants.dispatch_overlap), sent
        )

    # on a CPU there is no device to wait for
    late = np.zeros_like(layout.tp) if is_cpu else expert_host_s(model, table, constants)
    host = layer_host_s(table, layout, constants) + late
    launches = host * launches_of_layer(workload, layout, traits, again)
    if is_cpu:  # the same thread launches and computes
        compute = kernels + launches
    else:
        device = kernels + tensor + context + expert
        compute = kernels + smooth_maximum(device + FORWARD_LAUNCHES * late, launches) - device
    if (away := _activations_away(workload, table, layout, constants, traits)).any():
        compute = compute + exposed(away, compute, 1.0)
    return LayerTime(compute=compute, tensor=tensor, context=context, expert=expert)


def launches_of_layer(
    workload: Workload, layout: Layout, traits: Traits, again: Repeated
) -> Column:
    """Return the host time of one layer as a multiple of a plain layer's, shape (N,)."""
    beside = 0.0
    if workload.peft is not None:
        adapted = _matrices(workload.model, every=workload.peft.targets == "all")
        unpacked = _matrices(workload.model, every=True) if workload.peft.method == "qlora" else 0.0
        beside = ADAPTER * adapted + UNPACKING * unpacked
    launches = (1.0 + beside) * (1.0 + traits.checkpoint_host * again.moved)
    if not traits.shard_hooks:
        return launches
    return launches + np.where(
        layout.zero == 3, traits.shard_hooks * (3.0 + again.moved) / 3.0, 0.0
    )


def _products_s(
    workload: Workload, layout: Layout, constants: Calibration, matmuls: Column, again: Repeated
) -> Column:
    """Return the seconds of all matrix products of the layer's weights, with adapters and the
    unpacking of 4-bit weights. `matmuls`: of one forward pass."""
    # gradients of inputs and of weights; frozen weights have no gradients of their own
    backward_matmuls = 2.0 if workload.peft is None else 1.0
    passes = 1.0 + backward_matmuls + again.matmuls
    products = passes * matmuls + (3.0 + again.matmuls) * adapters_forward_s(
        workload, layout, constants
    )
    dense, experts = layer_weights(workload.model, layout)
    return products + passes * unpacking_s(workload, constants, dense + experts)


def _matrices(model: ModelSpec, *, every: bool) -> float:
    """Return the weight matrices of one layer as libraries store them."""
    return sum(
        apart(model, m.part) * m.share
        for m in layer_matmuls(model)
        if every or m.part in ("inputs", "output")
    )


def _activations_away(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Return the seconds of copies of one layer's activations to the host and back, for one
    micro-batch."""
    away = is_offloaded(table, "activations")
    if not away.any():
        return np.zeros_like(layout.tp)
    kept = layout.tokens * mean_kept_bytes(workload, table, layout, constants, traits)
    copied = offloaded_layer_s(workload.cluster.gpu, kept)
    return np.where(away, copied, 0.0)
