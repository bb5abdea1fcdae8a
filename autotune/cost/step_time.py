"""One optimizer step: the parts of `compute`, `traffic` and `pipeline`, added up on the slowest rank of the pipeline."""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.collectives import send_time_s, shared_by
from autotune.cost.compute import (
    element_bytes,
    exposed,
    head_step_s,
    keeps_scores,
    layer_forward_s,
    layer_host_s,
    smooth_maximum,
)
from autotune.cost.layout import Layout
from autotune.cost.parameters import edge_weights, layer_weights
from autotune.cost.pipeline import bubble_time_s
from autotune.cost.recompute import repeated
from autotune.cost.stages import Stages
from autotune.cost.traffic import context_layer_s, data_step_s, expert_layer_s, tensor_layer_s
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, TimeParts, Workload


def time_parts(
    workload: Workload, table: ConfigTable, layout: Layout, stages: Stages, constants: Calibration, traits: Traits
) -> TimeParts:
    """Seconds of one step by cause, of every row.

    Work per micro-batch is counted on the rank that is slowest for one micro-batch; the other ranks only add to the bubble. The host launches
    both kernels and collectives, so a layer takes at least the time that the host needs to launch it.
    """
    model, cluster = workload.model, workload.cluster
    matmuls, attention, moved = layer_forward_s(workload, table, layout, constants, traits)
    again = repeated(model, table, layout, traits)
    # FlashAttention's backward pass computes the scores again: 2.5 forwards (Dao, arXiv 2307.08691)
    backward_scores = np.where(keeps_scores(table, constants, traits), 2.0, 2.5)
    scores = (1.0 + backward_scores + again.scores) * attention
    kernels = (3.0 + again.matmuls) * matmuls + (3.0 + again.moved) * moved + scores
    tensor = (2.0 + again.collectives) * tensor_layer_s(workload, table, layout, constants)
    # the ring sends keys and values in the forward pass, and these and their gradients in the backward pass, concurrently with attention
    ring = (3.0 + again.scores) * context_layer_s(workload, table, layout, constants)
    context = exposed(ring, scores, constants.data_overlap)
    expert = (2.0 + again.moved) * expert_layer_s(workload, table, layout, constants)

    host = layer_host_s(layout, constants)
    device = kernels + tensor + context + expert
    launches = host * (3.0 + again.moved) / 3.0
    if cluster.gpu.is_cpu:  # the same thread launches and computes
        layer = kernels + launches
    else:
        layer = kernels + smooth_maximum(device, launches) - device
    head = head_step_s(workload, table, layout, constants, traits)

    dense, experts = layer_weights(model, layout)
    embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
    own = np.stack([stages.first, stages.middle, stages.last])
    edge = np.stack([np.where(layout.pp == 1, head, 0.0), np.zeros_like(head), head])
    busy = own * (layer + tensor + context + expert) + edge
    slowest = np.argmax(busy, axis=0)[None]

    def at(rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.take_along_axis(rows, slowest, axis=0)[0])

    layers, per_micro_batch, m = at(own), at(busy), layout.accumulation
    per_layer = layer + tensor + context + expert
    all_ranks = model.num_layers * per_layer + head
    others = np.maximum(all_ranks - per_micro_batch, 0.0)

    shared = layout.sequence_parallel | traits.scattered_sends
    boundary = layout.tokens * model.hidden_size * element_bytes(table) / np.where(shared, layout.tp, 1.0)
    inside = (layout.stages_per_node - 1.0) / np.maximum(layout.stages_per_node, 1.0)
    send = constants.send_host_s + send_time_s(inside, boundary, cluster, constants)
    sends = np.where(layout.pp > 1, 2.0 * layout.virtual * m + 2.0 * (layout.pp - 1.0), 0.0)

    ends = np.where(layout.pp == 1, embedding + projection, np.maximum(embedding, projection))
    weights = layers * dense + ends
    once, each = data_step_s(workload, table, layout, constants, traits, weights, layers * experts, layers)
    backward = layers * kernels * 2.0 / 3.0
    exposed_once = exposed(once, backward, constants.data_overlap)
    exposed_each = exposed(each, per_micro_batch, constants.data_overlap)

    shards = np.where(layout.zero >= 1, layout.data_group.size, 1.0)
    states = 28.0 if workload.optimizer == "adamw" else 16.0
    update = (weights / shards + layers * experts / np.maximum(shards / layout.ep, 1.0)) * states
    optimizer = update / (cluster.gpu.memory_bytes_per_s * constants.memory_efficiency)

    compute = m * (layers * layer + at(edge)) + m * constants.micro_batch_host_s
    parts = {
        "compute": compute,
        "tp_comm": m * layers * tensor,
        "pp_comm": sends * send,
        "dp_comm": exposed_once + m * exposed_each,
        "cp_comm": m * layers * context,
        "ep_comm": m * layers * expert,
        "bubble": bubble_time_s(table, layout, others),
        "optimizer": optimizer,
    }
    if constants.full_speed_ranks > 0:
        # ranks share cores, so a rank that waits for the pipeline leaves its core to the others: their slowdown is taken from the bubble
        slower = shared_by(layout.tp_group.crowd, constants)
        lent = (slower - 1.0) * (parts["compute"] + parts["optimizer"])
        parts |= {name: slower * parts[name] for name in ("compute", "optimizer")}
        parts["bubble"] = np.maximum(parts["bubble"] - lent, 0.0)
    nodes = np.ceil(layout.world / cluster.gpus_per_node)
    growth = constants.straggler * np.log2(np.maximum(nodes, 1.0))
    return TimeParts(**parts, other=constants.step_host_s + growth * sum(parts.values()))
