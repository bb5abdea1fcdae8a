"""One optimizer step: the parts of `compute`, `traffic` and `pipeline`, added up on the slowest rank of the pipeline.

How often the host launches: its time for one layer and micro-batch, in units of a plain layer's forward and backward pass (`layer_host_s`).

    adapters     beside each matrix dropout, two products, a scaling and a sum, and their gradients (`ADAPTER`); with 4-bit weights their unpacking (`UNPACKING`)
    recompute    a repeated forward pass, and what the checkpoint itself does: saved tensors, hooks, states of random generators (`Traits.checkpoint_host`)
    ZeRO-3       hooks before and after every module, which gather and release its weights one by one (`Traits.shard_hooks`: DeepSpeed)

Measured on one CPU core with layers of Llama's form so narrow that nothing but the host counts (`python -m research.host_launches`: transformers, PEFT,
bitsandbytes, DeepSpeed); FSDP beside a process group that moves nothing (2.0, 2.8 to 3.3 times a plain layer with it). Assumed: a GPU's launches cost as much more in each.

The optimizer's own step: the bytes that it moves, and the matrix products of Muon.

    bytes per weight that an update reads and writes, with gradients, weights and moments in fp32
    adamw        28    read gradient, weight, two moments; write weight and moments (Loshchilov and Hutter, arXiv 1711.05101)
    adamw_8bit   16    the same with moments of one byte each (Dettmers et al., arXiv 2110.02861)
    muon         20    one moment; embedding and output projection are updated by adamw (Jordan, https://kellerjordan.github.io/posts/muon)
    adafactor    16    the gradient is read twice, sums over rows and columns are small (Shazeer and Stern, arXiv 1804.04235)
    sgd          16    gradient, weight, and one more read of both for clipping

AdamW as torch runs it on a GPU unless it is told `fused=True` (`Traits.foreach`) is a chain of kernels, each of which reads and writes all weights: 80 bytes, 20 of 4
(torch/optim/adam.py, `_multi_tensor_adam`).

    decay 2    first moment 3    second moment 2 + 3    its root 2    correction 2    epsilon 2    weight 4

Muon makes the update of each matrix (a x b, a <= b) orthogonal by five Newton-Schulz steps of 4 a^2 b + 2 a^3 FLOPs, in bf16. Matrices are cut as tensor
parallelism cuts them, and dealt over the ranks that shard the optimizer (Liu et al., arXiv 2502.16982). Neglected: the gather of a matrix whose rows lie on several
ranks, and that few matrices cannot be dealt evenly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import (
    Column,
    Layout,
    Matmul,
    Stages,
    attended_len,
    edge_weights,
    layer_matmuls,
    layer_weights,
)
from autotune.cost.learn.from_dry_runs import product_factor
from autotune.cost.memory.activations import mean_kept_bytes
from autotune.cost.memory.states import all_in_bf16, cuts_gradients, reduction_bytes
from autotune.cost.time.collectives import send_time_s, shared_by
from autotune.cost.time.compute import (
    BACKWARD_SCORES,
    element_bytes,
    exposed,
    head_step_s,
    keeps_scores,
    layer_forward_s,
    layer_host_s,
    peak_of,
    smooth_maximum,
)
from autotune.cost.time.experts import FORWARD_LAUNCHES, expert_host_s, expert_layer_s, gradient_bytes
from autotune.cost.time.pipeline import bubble_time_s
from autotune.cost.time.recompute import Repeated, repeated
from autotune.cost.time.stalls import is_offloaded, offloaded_layer_s, offloaded_update_s
from autotune.cost.time.traffic import (
    RankWeights,
    context_s,
    data_step_s,
    hidden_rings_s,
    ring_scores_s,
    tensor_layer_s,
)
from autotune.cost.trainable import (
    FROZEN_EDGE_BYTES,
    adapter_weights,
    adapters_forward_s,
    adapters_moved_s,
    apart,
    frozen_bytes,
    unpacking_s,
)
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, ModelSpec, TimeParts, Workload

ADAPTER = 0.09
"""for one adapter"""
UNPACKING = 0.19
"""to unpack one matrix of 4 bits, forward and backward"""


def _matrices(model: ModelSpec, *, every: bool) -> float:
    """Weight matrices of one layer as libraries hold them."""
    return sum(apart(model, m.part) * m.share for m in layer_matmuls(model) if every or m.part in ("inputs", "output"))


def launches_of_layer(workload: Workload, layout: Layout, traits: Traits, again: Repeated) -> Column:
    """Host time of one layer as a multiple of a plain one's."""
    beside = 0.0
    if workload.peft is not None:
        adapted = _matrices(workload.model, every=workload.peft.targets == "all")
        unpacked = _matrices(workload.model, every=True) if workload.peft.method == "qlora" else 0.0
        beside = ADAPTER * adapted + UNPACKING * unpacked
    launches = (1.0 + beside) * (1.0 + traits.checkpoint_host * again.moved)
    if not traits.shard_hooks:
        return launches
    return launches + np.where(layout.zero == 3, traits.shard_hooks * (3.0 + again.moved) / 3.0, 0.0)


UPDATE_BYTES = {"adamw": 28.0, "sgd": 16.0, "adamw_8bit": 16.0, "muon": 20.0, "adafactor": 16.0}
"""bytes per weight that an update moves"""
FOREACH_BYTES = 80.0
"""of AdamW as a chain of kernels"""
EIGHT_BIT_SAVED = 6.0
"""of them where gradients and weights are in bf16 and moments in one byte each: three times 2 bytes; with moments in bf16 too it is half of all"""
NEWTON_SCHULZ_STEPS = 5.0


def update_bytes(
    workload: Workload, inner: Column, edges: Column, is_pure: NDArray[np.bool_], *, foreach: bool = False
) -> Column:
    """Bytes that the update of a rank's weights moves. `inner`: weights of layers, `edges`: of embedding and output projection, `is_pure`: `all_in_bf16`."""
    each = UPDATE_BYTES | ({"adamw": FOREACH_BYTES} if foreach else {})
    outside = "adamw" if workload.optimizer == "muon" else workload.optimizer
    moved = inner * each[workload.optimizer] + edges * each[outside]
    halved = moved - (inner + edges) * EIGHT_BIT_SAVED if workload.optimizer == "adamw_8bit" else moved / 2.0
    return np.where(is_pure, halved, moved)


def orthogonal_s(workload: Workload, layout: Layout, constants: Calibration, layers: Column, shards: Column) -> Column:
    """Seconds of Muon's Newton-Schulz steps on a rank; zero for other optimizers."""
    if workload.optimizer != "muon":
        return np.zeros_like(layout.tp)
    flops = sum(
        (_newton_schulz_flops(workload, layout, matrix) for matrix in layer_matmuls(workload.model)), layers * 0
    )
    return layers * flops / shards / (peak_of(workload, "bf16") * constants.matmul_efficiency)


def _newton_schulz_flops(workload: Workload, layout: Layout, matrix: Matmul) -> Column:
    """Of one weight matrix of a layer, of all its experts on the rank."""
    cut = layout.expert_tp if matrix.expert else layout.tp
    n = matrix.n / (cut if matrix.cut == "n" else 1.0)
    k = matrix.k / (cut if matrix.cut == "k" else 1.0)
    short, long = np.minimum(n, k), np.maximum(n, k)
    count = workload.model.num_experts / layout.ep if matrix.expert else 1.0
    return NEWTON_SCHULZ_STEPS * (4.0 * short**2 * long + 2.0 * short**3) * count * matrix.share


GRADIENT_SUMS = 3.0
"""reads and writes of a sum of gradients: both terms and the result"""


def time_parts(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    stages: Stages,
    constants: Calibration,
    traits: Traits,
) -> TimeParts:
    """Seconds of one step by cause, of every row.

    Work per micro-batch is counted on the rank that is slowest for one micro-batch; the other ranks only add to the bubble. The host launches
    both kernels and collectives, so a layer takes at least the time that the host needs to launch it.
    """
    model, cluster = workload.model, workload.cluster
    matmuls, attention, moved = layer_forward_s(workload, table, layout, constants, traits)
    by_runs = product_factor(workload, constants)
    matmuls = by_runs * matmuls
    again = repeated(model, table, layout, traits, attended_len(workload))
    backward_scores = 2.0 if keeps_scores(workload, traits) else BACKWARD_SCORES
    scores = (1.0 + backward_scores + again.scores) * attention
    scores = ring_scores_s(workload, table, layout, constants, scores, again.scores)
    dense, experts = layer_weights(model, layout)
    # gradients of inputs and of weights; frozen weights have no gradients of their own
    backward_matmuls = 2.0 if workload.peft is None else 1.0
    passes = 1.0 + backward_matmuls + again.matmuls
    products = passes * matmuls + (3.0 + again.matmuls) * adapters_forward_s(workload, layout, constants)
    products = products + passes * unpacking_s(workload, constants, dense + experts)
    kernels = products + (3.0 + again.moved) * moved + scores
    forward, backward = adapters_moved_s(workload, table, layout, constants, traits)
    kernels = kernels + (1.0 + again.matmuls) * forward + backward
    tensor = tensor_layer_s(workload, table, layout, constants, again.collectives)
    if traits.async_linear and workload.peft is None and not model.num_experts:
        tensor = tensor - hidden_rings_s(workload, layout, tensor, again.collectives, matmuls)
    if table.async_tp.any():  # one piece per rank, of which one is not hidden
        tensor = np.where(table.async_tp, exposed(tensor, products, 1.0 - 1.0 / layout.tp), tensor)
    context = context_s(workload, table, layout, constants, traits, again.scores, scores)
    expert = np.zeros_like(layout.tp)
    if model.num_experts:
        if workload.peft is None:
            gradients = gradient_bytes(model, layout, traits)
            kernels = kernels + gradients / (cluster.gpu.memory_bytes_per_s * constants.memory_efficiency)
        sent = expert_layer_s(workload, table, layout, constants, traits, again.dispatches, element_bytes(table))
        expert = np.where(table.ep_overlap, exposed(sent, kernels, constants.dispatch_overlap), sent)

    # on a CPU there is no device to wait for
    late = np.zeros_like(layout.tp) if cluster.gpu.is_cpu else expert_host_s(model, table, constants)
    host = layer_host_s(table, layout, constants) + late
    device = kernels + tensor + context + expert
    launches = host * launches_of_layer(workload, layout, traits, again)
    if cluster.gpu.is_cpu:  # the same thread launches and computes
        layer = kernels + launches
    else:
        ready = device + FORWARD_LAUNCHES * late
        layer = kernels + smooth_maximum(ready, launches) - device
    if (away := _activations_away(workload, table, layout, constants, traits)).any():
        layer = layer + exposed(away, layer, 1.0)
    behind = by_runs * head_step_s(workload, table, layout, constants, traits)
    nothing = np.zeros_like(behind)
    # output projection and loss on the last rank
    edge = np.stack([np.where(layout.pp == 1, behind, 0.0), nothing, behind])

    embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
    own = np.stack([stages.first, stages.middle, stages.last])
    busy = own * (layer + tensor + context + expert) + edge
    slowest = np.argmax(busy, axis=0)[None]

    def at(rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.take_along_axis(rows, slowest, axis=0)[0])

    layers, per_micro_batch, m = at(own), at(busy), layout.accumulation
    per_layer = layer + tensor + context + expert
    all_ranks = (model.num_layers + model.mtp_layers) * per_layer + np.where(layout.pp == 1, edge[0], edge[0] + edge[2])
    others = np.maximum(all_ranks - per_micro_batch, 0.0)

    shared = layout.sequence_parallel | traits.scattered_sends
    boundary = layout.tokens * model.hidden_size * element_bytes(table) / np.where(shared, layout.tp, 1.0)
    leaves = layout.stages_per_domain < layout.pp  # the last stage of every domain sends to another one
    inside = np.where(leaves, (layout.stages_per_domain - 1.0) / layout.stages_per_domain, 1.0)
    send = constants.send_host_s + send_time_s(inside, boundary, cluster, constants)
    chunk = per_micro_batch / (2.0 * layout.virtual)  # forward or backward pass of one stage
    hides = traits.overlapped_sends & (layout.virtual > 1)
    steady = np.where(hides, exposed(send, chunk, 1.0), send)
    sends = np.where(layout.pp > 1, 2.0 * layout.virtual * m * steady + 2.0 * (layout.pp - 1.0) * send, 0.0)

    outer = np.where(layout.pp == 1, embedding + projection, np.maximum(embedding, projection))
    most = own.max(axis=0)  # ranks end together, so the one with the most weights ends last
    if workload.peft is None:
        weights = RankWeights(most, most * dense + outer, most * experts, nothing, nothing)
    else:
        beside, beside_experts = adapter_weights(model, workload.peft, layout)
        size = frozen_bytes(workload)
        frozen = (size * most * dense + FROZEN_EDGE_BYTES * outer, size * most * experts)
        weights = RankWeights(most, most * beside, most * beside_experts, *frozen)
        outer = nothing
    once, each, late = data_step_s(workload, table, layout, constants, traits, weights)
    exposed_each = exposed(each, per_micro_batch, constants.data_overlap)
    backward = np.maximum(layers * layer * 2.0 / 3.0 - (each - exposed_each), 0.0)
    exposed_once = exposed(once, backward, constants.data_overlap)

    compute = m * (layers * layer + at(edge)) + m * np.where(
        table.is_word("cuda_graph", "step"), 0.0, constants.micro_batch_host_s
    )
    waiting = (layout.zero == 3) & ~cuts_gradients(
        layout, traits
    )  # autograd adds a micro-batch's gradients to whole ones
    if waiting.any():
        summed = GRADIENT_SUMS * reduction_bytes(workload, table, traits) * (weights.dense + weights.experts)
        rate = cluster.gpu.memory_bytes_per_s * constants.memory_efficiency
        compute = compute + np.where(waiting, (m - 1.0) * summed / rate, 0.0)
    parts = {
        "compute": compute,
        "tp_comm": m * (layers * tensor),
        "pp_comm": sends,
        "dp_comm": exposed_once + m * (exposed_each + late),
        "cp_comm": m * layers * context,
        "ep_comm": m * layers * expert,
        "bubble": bubble_time_s(table, layout, others),
        "optimizer": _optimizer_s(workload, table, layout, constants, traits, weights, outer),
    }
    if constants.full_speed_ranks > 0:
        # ranks share cores, so a rank that waits for the pipeline leaves its core to the others: their slowdown is taken from the bubble
        slower = shared_by(layout.tp_group.crowd, constants)
        lent = (slower - 1.0) * (parts["compute"] + parts["optimizer"])
        parts |= {name: slower * parts[name] for name in ("compute", "optimizer")}
        parts["bubble"] = np.maximum(parts["bubble"] - lent, 0.0)
    nodes = np.ceil(layout.world / cluster.gpus_per_node)
    growth = constants.straggler * np.log2(np.maximum(nodes, 1.0))
    parts["other"] = constants.step_host_s + growth * sum(parts.values())
    return TimeParts(**{name: constants.level * part for name, part in parts.items()})


def _optimizer_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    weights: RankWeights,
    ends: Column,
) -> Column:
    """Seconds of the update of a rank's weights, of which `ends` belong to embedding and output projection."""
    gpu = workload.cluster.gpu
    shards = np.where(layout.zero >= 1, layout.shard_group.size, 1.0)
    expert_shards = np.where(layout.zero >= 1, layout.expert_shard_group.size, 1.0)
    inner = (weights.dense - ends) / shards + weights.experts / expert_shards
    is_pure = all_in_bf16(workload, layout)
    moved = update_bytes(workload, inner, ends / shards, is_pure, foreach=traits.foreach)
    here = moved / (gpu.memory_bytes_per_s * constants.memory_efficiency)
    here = here + orthogonal_s(workload, layout, constants, weights.layers, shards)
    away = is_offloaded(table, "optimizer")
    if not away.any():
        return here
    there = update_bytes(workload, inner, ends / shards, is_pure)
    on_host = offloaded_update_s(workload, inner + ends / shards, there) / constants.program_level
    return np.where(away, on_host, here)


def _activations_away(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Seconds of copies of one layer's activations to the host and back, for one micro-batch."""
    away = is_offloaded(table, "activations")
    if not away.any():
        return np.zeros_like(layout.tp)
    kept = layout.tokens * mean_kept_bytes(workload, table, layout, constants, traits)
    copied = offloaded_layer_s(workload.cluster.gpu, kept)
    return np.where(away, copied, 0.0)
