"""Communication of a step: tensor, context, expert and data parallel.

tensor     two all-reduces per layer forward and two backward, of tokens * h elements; with sequence parallelism each is a reduce-scatter and an
           all-gather, the same bytes (Korthikanti et al., arXiv 2205.05198, section 4.2). Asynchronous tensor parallelism cuts each into one piece
           per rank, and all pieces but one run while another is multiplied (Wang et al., ASPLOS 2023, https://doi.org/10.1145/3567955.3567959;
           torch's symmetric memory). nanotron starts some of the backward pass early (`hidden_rings_s`). Experts that are cut as well sum what they
           make of every token that visits them: k times a dense layer's bytes in the forward pass, and in the backward pass for the up and the gate projection each. With sequence parallelism one gather each way comes before that.
           Whole experts get each rank's own tokens from the dispatcher: such a layer has the rings of its attention alone, and those of shared experts, which are cut like a dense MLP (Megatron-Core, `SharedExpertMLP`)
data       one all-reduce of the gradients, or under ZeRO a reduce-scatter and an all-gather of the weights (Rajbhandari et al., arXiv 1910.02054,
           section 7); ZeRO-3 gathers the weights once more before the backward pass, for every micro-batch. Where a checkpoint lies around what FSDP wraps
           (`Traits.gathers_again`), the repeated forward pass gathers and frees them too, and neither of the two gathers of the backward pass is begun early: it waits for
           them (transformers, "Fully Sharded Data Parallel": `gradient_checkpointing` brings a redundant all-gather). Where gradients are kept in shards they are
           reduced for every micro-batch, else once in a step (`model_states.cuts_gradients`). With copies of the shards (HSDP) these run inside a copy, and each shard's gradients are all-reduced over the copies (Zhao et al., PyTorch FSDP, arXiv 2304.11277, section 3.2.2)
context    ring: keys and values go around, concurrently with attention (Liu et al., arXiv 2310.01889). torch's `context_parallel`, which torchtitan uses, gathers them at once
           and begins with the rank's own keys meanwhile, one n-th of the attention; gradients go around in fp32 (`_templated_ring_attention_backward`). heads: all-to-alls of queries, keys, values and
           outputs (Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509). gather: keys and values are gathered before attention, and their gradients reduced
           and scattered after it (Llama 3, arXiv 2407.21783, section 3.3.2). The last two hide behind nothing
expert     see `experts.py`

What a ring costs attention beside its traffic: shorter kernels, and the sums of their results.

    n ranks of context parallelism   s length of the sequence   q, k widths of queries and of keys on a rank

The sequence is cut into 2n chunks, of which a rank holds the r-th from either end, so that causal
attention costs every rank the same. Its queries meet the keys of one rank at a time: n kernels over
chunks of s / 2n instead of one over s.

    kernels   over l keys one reaches 1 / (1 + L/l) of the speed of a long one, L = 150: FlashAttention-3's forward pass on an H100 reaches 497, 565, 625,
              638, 646 and 648 TFLOP/s over 512 to 16,384 keys (Shah et al., arXiv 2407.08608, figure 5, head width 128, not causal)
    sums      what each of the n - 1 later kernels finds is added to sums in fp32, 2 + 4 + 4 bytes: the output in the forward pass, the gradients of
              queries, keys and values in the backward pass; on average for three quarters of them, as causal kernels skip half of the queries or of the keys

Check: a ring of eight over 65,536 tokens reaches 90.2% of one kernel's speed on H800 and 89.8% on
A100, forward and backward (zhuzilin/ring-flash-attention, README); these two costs make 93 to 94%
of it. Neglected: launches of the kernels. A cut into n contiguous chunks, as some trainers have it,
makes the last rank's attention (2n - 1) / n times as long as the mean: no trainer here does so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Layout, attended_len, layer_matmuls, weighed
from autotune.cost.memory.states import cuts_gradients, reduction_bytes, shards_weights
from autotune.cost.time.collectives import (
    all_to_all_time_s,
    ring_bytes_s,
    ring_latency_s,
    ring_time_s,
)
from autotune.cost.time.compute import BACKWARD_SCORES, element_bytes, exposed
from autotune.cost.time.experts import whole_expert_share
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload


def tensor_layer_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, again: Column
) -> Column:
    """Return the seconds of tensor-parallel collectives in one layer for one micro-batch; `again`:
    share of the forward pass that is computed again."""
    model = workload.model
    moved = layout.tokens * model.hidden_size * element_bytes(table)
    cut = np.where(layout.expert_tp > 1, model.expert_share, 0.0)
    visits, gates = float(model.experts_per_token), 2.0 if model.gated_mlp else 1.0
    around = np.where(layout.sequence_parallel, 1.0, 0.0)
    ringless = whole_expert_share(model, layout)
    forward = 4.0 - 2.0 * ringless + cut * (2.0 * visits - 2.0 + around)
    backward = 4.0 - 2.0 * ringless + cut * (2.0 * visits * gates - 2.0 + around)
    rings = (1.0 + again) * forward + backward
    return tensor_rings_s(workload, layout, constants, rings, rings * moved)


def tensor_rings_s(
    workload: Workload,
    layout: Layout,
    constants: Calibration,
    rings: float | Column,
    whole_bytes: Column,
) -> Column:
    """Return the seconds of `rings` ring collectives over the tensor-parallel ranks. `whole_bytes`:
    total bytes of their gathered tensors."""
    group, cluster = layout.tp_group, workload.cluster
    latency = ring_latency_s(group, cluster, constants) + constants.tensor_hop_s * (
        group.domains - 1.0
    )
    seconds = rings * latency + ring_bytes_s(group, whole_bytes, cluster, constants)
    return np.where(layout.tp > 1, seconds, 0.0)


def hidden_rings_s(
    workload: Workload, layout: Layout, tensor: Column, again: Column, forward_matmuls: Column
) -> Column:
    """Return the seconds of a dense layer's tensor-parallel collectives that are hidden behind
    matrix products, for trainers that start them early under sequence parallelism
    (`Traits.async_linear`). In the backward pass of the first matrices of attention and MLP the
    gradient of the input is scattered while that of the weight is computed. The inputs are gathered
    once more during the gradient of the input; the part of that which is not hidden is subtracted,
    so the result may be negative.

    `tensor`: seconds of all collectives, `again`: share of the forward pass's that is repeated,
    `forward_matmuls`: seconds of the layer's products, forward.
    """
    work = dict.fromkeys(("inputs", "output", "up", "down"), 0.0)
    for matmul in layer_matmuls(workload.model):
        work[matmul.part] += weighed(workload.model, matmul)
    cover = forward_matmuls * (work["inputs"] + work["up"]) / sum(work.values())
    scatters = tensor * 2.0 / (8.0 + 4.0 * again)
    return np.where(layout.sequence_parallel, scatters - 2.0 * exposed(scatters, cover, 1.0), 0.0)


def context_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    again: Column,
    scores: Column,
) -> Column:
    """Return the seconds of context parallelism in one layer for one micro-batch, forward and
    backward, that are not hidden.

    `again`: share of attention that is computed again; `scores`: seconds of attention, behind which
    a ring hides.
    """
    if not (table.cp > 1).any():
        return np.zeros_like(layout.cp)
    cluster, model = workload.cluster, workload.model
    per_token = layout.tokens * element_bytes(table) / layout.tp
    kv, q = (2.0 * model.num_kv_heads * model.head_dim, model.num_attention_heads * model.head_dim)
    # keys and values in the forward pass, these and their gradients in the backward pass
    once = ring_time_s(layout.cp_group, per_token * layout.cp * kv, cluster, constants)
    passed = (3.0 + again) * once
    dealt = (
        (2.0 + again)
        * 2.0
        * all_to_all_time_s(layout.cp_group, per_token * (q + kv / 2.0), cluster, constants)
    )
    if traits.repeats_keys:  # a ring passes on what attention gets
        once = ring_time_s(layout.cp_group, per_token * layout.cp * 2.0 * q, cluster, constants)
    round_trip = 4.0 / element_bytes(table) * layout.cp / np.maximum(layout.cp - 1.0, 1.0)
    gradients = (round_trip if traits.ring_sums_fp32 else 1.0) * once
    gathers = (2.0 + again) * once
    ring = exposed(gathers + gradients, scores, constants.data_overlap)
    if traits.ring_gathers:
        first = scores / layout.cp
        backward = (scores - first) * BACKWARD_SCORES / (1.0 + BACKWARD_SCORES + again)
        ring = exposed(gathers, first, constants.data_overlap) + exposed(
            gradients, backward, constants.data_overlap
        )
    return np.where(
        table.is_word("cp_style", "heads"),
        dealt,
        np.where(table.is_word("cp_style", "gather"), passed, ring),
    )


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of a rank: trained ones, whose gradients are reduced, and frozen ones, which are only
    gathered."""

    layers: Column
    """layers on the rank"""
    dense: Column
    """trained weights without its experts"""
    experts: Column
    """trained weights of its experts"""
    frozen_dense_bytes: Column
    """bytes of frozen weights without its experts"""
    frozen_experts_bytes: Column
    """bytes of frozen weights of its experts"""


def data_step_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    weights: RankWeights,
) -> tuple[Column, Column, Column]:
    """Return the seconds of a rank's data-parallel traffic: (once per step, per micro-batch, part
    of a micro-batch's traffic that cannot overlap with compute)."""
    cluster = workload.cluster
    size = element_bytes(table)
    reduce_bytes = reduction_bytes(workload, table, traits)
    shards, copies = layout.shard_group, layout.replica_group
    expert_shards = layout.expert_shard_group

    def ring(dense: Column, experts: Column) -> Column:
        """Return the seconds of one reduce-scatter or all-gather of these bytes inside a
        replica."""
        shared = ring_bytes_s(shards, dense, cluster, constants)
        return shared + ring_bytes_s(expert_shards, experts, cluster, constants)

    trained = (weights.dense * reduce_bytes, weights.experts * reduce_bytes)
    reduce = ring(*trained)
    per_collective = traits.collectives_per_layer * (weights.layers + 1.0)
    latency = ring_latency_s(shards, cluster, constants) * per_collective
    if (table.dp_replicas > 1).any():
        own_shard = trained[0] / shards.size + trained[1] / expert_shards.size
        between = 2.0 * ring_bytes_s(copies, own_shard, cluster, constants)
        reduce = (
            reduce + between + 2.0 * ring_latency_s(copies, cluster, constants) * per_collective
        )
    # without 16-bit weights beside them, ZeRO-1 gathers the fp32 weights that it has updated
    gathered_bytes = (
        size
        if traits.master_weights or workload.pure_bf16
        else np.where(layout.zero == 1, 4.0, size)
    )
    gather = ring(weights.dense * gathered_bytes, weights.experts * gathered_bytes)
    frozen = ring(weights.frozen_dense_bytes, weights.frozen_experts_bytes)
    alone = layout.data_group.size == 1
    reduced = np.where(layout.zero == 0, 2.0 * reduce, reduce + latency)
    kept = np.where(shards_weights(layout, traits), frozen, 0.0)
    gathered = np.where(layout.zero == 0, 0.0, gather + kept + latency)
    sharded, reduces_each = layout.zero == 3, cuts_gradients(layout, traits)
    once = np.where(reduces_each, 0.0, reduced) + np.where(sharded, 0.0, gathered)
    one = gather + frozen + latency
    again = sharded & table.is_word("recompute", "full") & traits.gathers_again
    each = np.where(reduces_each, reduced, 0.0) + np.where(
        sharded, np.where(again, 1.0, 2.0) * one, 0.0
    )
    return tuple(
        np.where(alone, 0.0, part) for part in (once, each, np.where(again, 2.0 * one, 0.0))
    )  # type: ignore[return-value]


HALF_SPEED_KEYS = 150.0
"""keys over which a kernel of attention reaches half of its speed"""
ADDED = 0.75
"""share of a rank's queries or keys to which one later kernel adds"""


def ring_scores_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    scores: Column,
    again: Column,
) -> Column:
    """Return the seconds of one layer's attention for one micro-batch under a ring, from those of
    the same work in one kernel.

    `scores`: forward and backward; `again`: share of the forward pass that is computed again.
    """
    rings = (table.cp > 1) & table.is_word("cp_style", "ring")
    if not rings.any():
        return scores
    gpu, model = workload.cluster.gpu, workload.model
    slower = (
        np.ones_like(layout.cp)
        if gpu.is_cpu
        else shorter_kernels(attended_len(workload), layout.cp)
    )
    q, kv = model.num_attention_heads * model.head_dim, 2.0 * model.num_kv_heads * model.head_dim
    added = (layout.cp - 1.0) * ADDED * layout.tokens * ((2.0 + again) * q + kv) / layout.tp
    sums = (
        added
        * (element_bytes(table) + 8.0)
        / (gpu.memory_bytes_per_s * constants.memory_efficiency)
    )
    return np.where(rings, scores * slower + sums, scores)


def shorter_kernels(length: float, ranks: Column) -> Column:
    """Return how much longer kernels over chunks of length / (2 * ranks) take than one over the
    whole length."""
    return np.asarray(
        (1.0 + HALF_SPEED_KEYS * 2.0 * ranks / length) / (1.0 + HALF_SPEED_KEYS / length)
    )
