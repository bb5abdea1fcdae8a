"""One optimizer step: the time of a layer, of the optimizer and of communication, added up on the
slowest rank of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Layout, Stages, edge_weights, layer_weights
from autotune.cost.learn.from_dry_runs import product_factor
from autotune.cost.memory.states import cuts_gradients, reduction_bytes
from autotune.cost.time.collectives import send_time_s, shared_by
from autotune.cost.time.compute import element_bytes, exposed, head_step_s
from autotune.cost.time.layer import LayerTime, layer_time
from autotune.cost.time.pipeline import bubble_time_s
from autotune.cost.time.traffic import RankWeights, data_step_s
from autotune.cost.time.update import update_s
from autotune.cost.trainable import adapter_weights, frozen_bytes, frozen_edge_bytes
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, TimeParts, Workload

GRADIENT_SUMS = 3.0
"""reads and writes of a sum of gradients: both terms and the result"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestRank:
    """The rank of the pipeline that is slowest for one micro-batch."""

    layers: Column
    """number of its layers"""
    head_s: Column
    """seconds of the output projection and the loss; 0 on a rank without them"""
    micro_batch_s: Column
    """seconds for one micro-batch, forward and backward"""
    others_s: Column
    """seconds for one micro-batch of all other ranks together, which only add to the bubble"""


def time_parts(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    stages: Stages,
    constants: Calibration,
    traits: Traits,
) -> TimeParts:
    """Return the seconds of one step by cause, for every row.

    Work per micro-batch is counted on the rank that is slowest for one micro-batch; the other ranks
    only add to the bubble.
    """
    layer = layer_time(workload, table, layout, constants, traits)
    rank = _slowest_rank(workload, table, layout, stages, constants, traits, layer)
    weights, edges = _weights_of_a_rank(workload, table, layout, stages, traits)
    m, layers = layout.accumulation, rank.layers

    once, each, late = data_step_s(workload, table, layout, constants, traits, weights)
    exposed_each = exposed(each, rank.micro_batch_s, constants.data_overlap)
    backward = np.maximum(layers * layer.compute * 2.0 / 3.0 - (each - exposed_each), 0.0)
    exposed_once = exposed(once, backward, constants.data_overlap)

    launched_whole = table.is_word("cuda_graph", "step")
    compute = m * (layers * layer.compute + rank.head_s) + m * np.where(
        launched_whole, 0.0, constants.micro_batch_host_s
    )
    compute = compute + _gradient_sums_s(workload, table, layout, constants, traits, weights)
    parts = {
        "compute": compute,
        "tp_comm": m * (layers * layer.tensor),
        "pp_comm": _sends_s(workload, table, layout, constants, traits, rank.micro_batch_s),
        "dp_comm": exposed_once + m * (exposed_each + late),
        "cp_comm": m * layers * layer.context,
        "ep_comm": m * layers * layer.expert,
        "bubble": bubble_time_s(table, layout, rank.others_s),
        "optimizer": update_s(workload, table, layout, constants, traits, weights, edges),
    }
    if constants.full_speed_ranks > 0:
        # ranks share cores, so a rank that waits for the pipeline leaves its core to the others:
        # their slowdown is taken from the bubble
        slower = shared_by(layout.tp_group.crowd, constants)
        lent = (slower - 1.0) * (parts["compute"] + parts["optimizer"])
        parts |= {name: slower * parts[name] for name in ("compute", "optimizer")}
        parts["bubble"] = np.maximum(parts["bubble"] - lent, 0.0)
    nodes = np.ceil(layout.world / workload.cluster.gpus_per_node)
    growth = constants.straggler * np.log2(np.maximum(nodes, 1.0))
    parts["other"] = constants.step_host_s + growth * sum(parts.values())
    return TimeParts(**{name: constants.level * part for name, part in parts.items()})


def _slowest_rank(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    stages: Stages,
    constants: Calibration,
    traits: Traits,
    layer: LayerTime,
) -> SlowestRank:
    model = workload.model
    head = product_factor(workload, constants) * head_step_s(
        workload, table, layout, constants, traits
    )
    # output projection and loss on the last rank
    edge = np.stack([np.where(layout.pp == 1, head, 0.0), np.zeros_like(head), head])
    own = np.stack([stages.first, stages.middle, stages.last])
    busy = own * layer.total + edge
    slowest = np.argmax(busy, axis=0)[None]

    def at(rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.take_along_axis(rows, slowest, axis=0)[0])

    micro_batch_s = at(busy)
    edges = np.where(layout.pp == 1, edge[0], edge[0] + edge[2])
    all_ranks = (model.num_layers + model.mtp_layers) * layer.total + edges
    others = np.maximum(all_ranks - micro_batch_s, 0.0)
    return SlowestRank(
        layers=at(own), head_s=at(edge), micro_batch_s=micro_batch_s, others_s=others
    )


def _sends_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    micro_batch_s: Column,
) -> Column:
    """Return the seconds of sends between the stages of a pipeline that are not hidden."""
    m = layout.accumulation
    shared = layout.sequence_parallel | traits.scattered_sends
    sent = (
        layout.tokens
        * workload.model.hidden_size
        * element_bytes(table)
        / np.where(shared, layout.tp, 1.0)
    )
    # the last stage of every domain sends to another one
    leaves = layout.stages_per_domain < layout.pp
    inside = np.where(leaves, (layout.stages_per_domain - 1.0) / layout.stages_per_domain, 1.0)
    send = constants.send_host_s + send_time_s(inside, sent, workload.cluster, constants)
    chunk = micro_batch_s / (2.0 * layout.virtual)  # forward or backward pass of one stage
    hides = traits.overlapped_sends & (layout.virtual > 1)
    steady = np.where(hides, exposed(send, chunk, 1.0), send)
    return np.where(
        layout.pp > 1, 2.0 * layout.virtual * m * steady + 2.0 * (layout.pp - 1.0) * send, 0.0
    )


def _weights_of_a_rank(
    workload: Workload, table: ConfigTable, layout: Layout, stages: Stages, traits: Traits
) -> tuple[RankWeights, Column]:
    """Return (the weights of the rank with the most layers, its trained weights in the embedding
    and the output projection, 0 with adapters)."""
    model = workload.model
    dense, experts = layer_weights(model, layout)
    embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
    edges = np.where(layout.pp == 1, embedding + projection, np.maximum(embedding, projection))
    # ranks end together, so the one with the most weights ends last
    most = np.stack([stages.first, stages.middle, stages.last]).max(axis=0)
    nothing = np.zeros_like(edges)
    if workload.peft is None:
        return RankWeights(most, most * dense + edges, most * experts, nothing, nothing), edges
    trained, trained_experts = adapter_weights(model, workload.peft, layout)
    size = frozen_bytes(workload)
    at_edges = frozen_edge_bytes(workload, table, traits) * edges
    frozen = (size * most * dense + at_edges, size * most * experts)
    return RankWeights(most, most * trained, most * trained_experts, *frozen), nothing


def _gradient_sums_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    weights: RankWeights,
) -> Column:
    """Return the seconds per step in which autograd adds gradients of micro-batches to unsharded
    ones; zero unless weights are sharded and gradients are not."""
    sums = (layout.zero == 3) & ~cuts_gradients(layout, traits)
    if not sums.any():
        return np.zeros_like(layout.tp)
    moved = (
        GRADIENT_SUMS * reduction_bytes(workload, table, traits) * (weights.dense + weights.experts)
    )
    rate = workload.cluster.gpu.memory_bytes_per_s * constants.memory_efficiency
    return np.where(sums, (layout.accumulation - 1.0) * moved / rate, 0.0)
