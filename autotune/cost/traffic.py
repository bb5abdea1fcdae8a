"""Communication of a step: tensor, context, expert and data parallel.

tensor     two all-reduces per layer forward and two backward, of tokens * h elements; with sequence parallelism each is a reduce-scatter and an
           all-gather, the same bytes (Korthikanti et al., arXiv 2205.05198, section 4.2)
data       one all-reduce of the gradients, or under ZeRO a reduce-scatter and an all-gather of the weights (Rajbhandari et al., arXiv 1910.02054,
           section 7); ZeRO-3 gathers the weights once more before the backward pass, for every micro-batch
context    keys and values go around a ring (Liu et al., arXiv 2310.01889)
expert     tokens are sent to the experts and back, forward and backward
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.collectives import all_to_all_time_s, ring_bytes_s, ring_latency_s, ring_time_s
from autotune.cost.compute import element_bytes
from autotune.cost.layout import Column, Group, Layout
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload


def tensor_layer_s(workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration) -> Column:
    """Seconds of tensor-parallel collectives in one layer's forward pass for one micro-batch."""
    moved = layout.tokens * workload.model.hidden_size * element_bytes(table)
    return 4.0 * ring_time_s(layout.tp_group, moved, workload.cluster, constants)


def context_layer_s(workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration) -> Column:
    """Seconds of sending keys and values around the ring in one layer's forward pass for one micro-batch."""
    width = 2.0 * workload.model.num_kv_heads * workload.model.head_dim / layout.tp
    moved = layout.tokens * layout.cp * width * element_bytes(table)
    return ring_time_s(layout.cp_group, moved, workload.cluster, constants)


def expert_layer_s(workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration) -> Column:
    """Seconds of sending tokens to the experts and back in one layer's forward pass for one micro-batch."""
    visits = workload.model.experts_per_token * workload.model.expert_share
    moved = layout.tokens * visits * workload.model.hidden_size * element_bytes(table) / layout.tp
    return 2.0 * all_to_all_time_s(layout.ep_group, moved, workload.cluster, constants)


def data_step_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    dense: Column,
    experts: Column,
    layers: Column,
) -> tuple[Column, Column]:
    """Seconds of data-parallel traffic of a rank: (once per step, per micro-batch).

    `layers`, `dense`, `experts`: the rank's layers, dense weights and expert weights.
    """
    cluster = workload.cluster
    size = element_bytes(table)
    half = np.where(table.is_word("precision", "fp16"), traits.fp16_reduce_bytes, traits.reduce_bytes)
    reduce_bytes = np.where(size < 4, half, 4.0)
    members = np.maximum(layout.data_group.size / layout.ep, 1.0)
    per_node = np.clip(np.floor(layout.data_group.per_node / layout.ep), 1.0, members)
    expert_group = Group(members, per_node, layout.data_group.crowd)

    def ring(weight_bytes: Column) -> Column:
        shared = ring_bytes_s(layout.data_group, dense * weight_bytes, cluster, constants)
        return shared + ring_bytes_s(expert_group, experts * weight_bytes, cluster, constants)

    latency = ring_latency_s(layout.data_group, cluster, constants) * traits.collectives_per_layer * (layers + 1.0)
    alone = layout.data_group.size == 1
    reduce, gather = ring(reduce_bytes), ring(size)
    once = np.where(layout.zero == 0, 2.0 * reduce, reduce + gather + 2.0 * latency)
    sharded = layout.zero == 3
    each = reduce + 2.0 * gather + 3.0 * latency
    return np.where(sharded | alone, 0.0, once), np.where(sharded & ~alone, each, 0.0)
