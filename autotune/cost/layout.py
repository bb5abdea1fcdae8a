"""Layout: sizes and node placement of the groups of ranks, as columns of floats used by all
formulas of this package.

Ranks are numbered with the tensor-parallel index fastest, then context, data, and pipeline slowest,
and fill one node after another (the order of Megatron-LM and of torch's DeviceMesh). A group is
described by its size and by the number of its members that share a domain: the GPUs that the fast
link joins, which is a node on most clusters and a rack of 18 nodes on a GB200 NVL72. A job takes
equally many nodes of each domain that it needs.

Pipeline stages: number of layers on the first, the last and the largest middle rank. The first rank
also holds the embedding, the last one the output projection, the loss and the layers of multi-token
prediction. `autotune.trainers.base.layer_split` distributes the other layers.

Weights per rank under tensor, expert and pipeline parallelism.

Floating-point operations that a decoder needs, independent of its distribution:

    n tokens   h hidden   f MLP width   q = heads * head_dim   kv = kv_heads * head_dim   s sequence length   V vocabulary

A matmul of (m, k) by (k, n) takes 2*m*n*k FLOPs; its backward pass is two matmuls of the same size
(Narayanan et al., arXiv 2104.04473, appendix). Attention is causal: half of the s*s scores are
needed. Norms, activation functions and the optimizer are not included; they are bound by memory and
counted as bytes in `compute.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ModelSpec, Workload
from autotune.trainers.base.layer_split import cut_layers
from autotune.trainers.base.whole_experts import keeps_experts_whole


@dataclass(frozen=True, slots=True)
class Stages:
    """Number of layers by pipeline rank, shape (N,) each."""

    first: Column
    """layers on the first rank"""
    middle: Column
    """layers on the largest rank between the first and the last; 0 if there is none"""
    last: Column
    """layers on the last rank; equal to `first` if there is one rank"""


def stages_of(model: ModelSpec, table: ConfigTable, split: str) -> Stages:
    """Return the stages of every row; the split is computed once per value of pp. `split`: the
    trainer's split, used unless the config has `pp_split` 'edges'."""
    by_edges = table.is_word("pp_split", "edges")
    kinds, where = np.unique(2 * table.pp + by_edges, return_inverse=True)
    cuts = np.array(
        [_cut(model, int(kind) // 2, "edges" if kind % 2 else split) for kind in kinds],
        dtype=np.float64,
    )
    cuts = cuts.reshape(-1, 3)
    return Stages(*(cuts[where, i] for i in range(3)))


def _cut(model: ModelSpec, p: int, split: str) -> tuple[float, float, float]:
    layers = cut_layers(model, p, split)
    layers[-1] += model.mtp_layers
    return layers[0], max(layers[1:-1], default=0.0), layers[-1]


def layer_weights(model: ModelSpec, layout: Layout) -> tuple[Column, Column]:
    """Return the weights of one layer on a rank, averaged over the layers: (dense weights, weights
    of experts)."""
    share = model.expert_share
    kinds = [(1.0 - share, False), (share, True)]
    found = [
        (part, weights_of_kind(model, layout, experts=experts))
        for part, experts in kinds
        if part > 0
    ]
    dense = sum(part * kind.dense for part, kind in found)
    return np.asarray(dense), np.asarray(sum(part * kind.experts for part, kind in found))


def edge_weights(model: ModelSpec, layout: Layout, vocab_parallel: bool) -> tuple[Column, Column]:
    """Return the weights of (embedding, output projection) on the first and last rank; tied weights
    count once if both are on the same rank. Parts outside the language model, such as a vision
    tower, are whole on the first rank."""
    cut = layout.tp if vocab_parallel else np.ones_like(layout.tp)
    # position embeddings are not split, because they are small
    positions = float(model.embedding_parameters - model.vocab_size * model.hidden_size)
    other = 0.0 if model.code is None else float(model.code.other_parameters)
    embedding = model.vocab_size * model.hidden_size / cut + positions + other
    head = model.vocab_size * model.hidden_size / cut
    return embedding, np.where((layout.pp == 1) & model.tied_embeddings, 0.0, head)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one layer on a rank."""

    dense: Column
    """weights that are the same on all data-parallel ranks"""
    experts: Column
    """weights of experts"""
    shapes: Column
    """weights of one matrix of every shape, added up"""


def weights_of_kind(model: ModelSpec, layout: Layout, *, experts: bool) -> LayerWeights:
    """Return the weights of a layer with or without experts. Norms, the router and the projection
    into a latent are replicated."""
    one = np.ones_like(layout.tp)
    uncut = float(sum(n * k for n, k, cut in model.attention_matrices if not cut))
    whole = uncut + model.norm_parameters + (model.router_parameters if experts else 0)
    mlp = model.shared_parameters if experts else model.dense_mlp_parameters
    matrices = [(n * k, cut) for n, k, cut in model.attention_matrices]
    gate = 3 if model.gated_mlp else 2
    widths = (
        (model.ffn_hidden_size, model.shared_ffn_hidden_size) if experts else (dense_width(model),)
    )
    matrices += [(gate * model.hidden_size * width, "n") for width in widths]
    shapes = sum(weights / (layout.tp if cut else one) for weights, cut in matrices)
    return LayerWeights(
        dense=(model.attention_parameters - uncut + mlp) / layout.tp + whole,
        experts=model.num_experts * model.mlp_parameters / (layout.expert_tp * layout.ep)
        if experts
        else 0.0 * one,
        shapes=np.asarray(shapes),
    )


def dense_width(model: ModelSpec) -> int:
    """Return the inner width of the MLP of a layer without experts."""
    return model.dense_ffn_hidden_size if model.num_experts else model.ffn_hidden_size


Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one collective."""

    size: Column
    """number of members"""
    per_domain: Column
    """number of members in the same domain"""
    crowd: Column
    """number of ranks on the same node, members or not"""

    @property
    def domains(self) -> Column:
        """Number of domains that the group spans."""
        return np.ceil(self.size / self.per_domain)


@dataclass(frozen=True, slots=True)
class Layout:
    """The configs of a table as floats, with the groups of their mesh."""

    tp: Column
    pp: Column
    dp: Column
    cp: Column
    ep: Column
    expert_tp: Column
    """number of ranks over which tensor parallelism splits one expert: tp, or 1 for a trainer that
    leaves experts whole"""
    micro_batch: Column
    """sequences per rank and micro-batch"""
    accumulation: Column
    """micro-batches per step and rank"""
    zero: Column
    """ZeRO stage"""
    sequence_parallel: NDArray[np.bool_]
    virtual: Column
    """pipeline stages per rank"""
    world: Column
    """number of ranks"""
    tokens: Column
    """tokens per rank and micro-batch: micro_batch * seq_len / cp"""
    tp_group: Group
    cp_group: Group
    data_group: Group
    """ranks with the same weights: dp * cp"""
    shard_group: Group
    """ranks over which one copy is sharded, which are adjacent: dp * cp / dp_replicas"""
    replica_group: Group
    """ranks with the same shard: dp_replicas"""
    ep_group: Group
    """ranks with different experts of a layer"""
    expert_shard_group: Group
    """ranks of one copy with the same experts, over which these are sharded: tp * cp * dp /
    (expert_tp * ep * dp_replicas)"""
    stages_per_domain: Column
    """number of adjacent pipeline ranks in the same domain"""


def layout_of(
    workload: Workload, table: ConfigTable, *, whole_experts: bool | None = None
) -> Layout:
    """Return the layout of every row. `whole_experts`: whether tensor parallelism leaves experts
    whole; default: as the workload's trainer does."""
    tp, pp, dp, cp, ep = (
        table.column(n).astype(np.float64) for n in ("tp", "pp", "dp", "cp", "ep")
    )
    world = tp * pp * dp * cp
    is_whole = keeps_experts_whole(workload) if whole_experts is None else whole_experts
    expert_tp = np.ones_like(tp) if is_whole else tp
    crowd = np.minimum(world, float(workload.cluster.gpus_per_node))
    domain = workload.cluster.domain_ranks(world)

    def group(size: Column, stride: Column) -> Group:
        return Group(size, np.clip(np.floor(domain / stride), 1.0, size), crowd)

    shards = dp * cp / table.dp_replicas.astype(np.float64)
    micro_batch = table.micro_batch_size.astype(np.float64)
    return Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        expert_tp=expert_tp,
        micro_batch=micro_batch,
        accumulation=table.accumulation_steps.astype(np.float64),
        zero=table.zero_stage.astype(np.float64),
        sequence_parallel=table.sequence_parallel & (table.tp > 1),
        virtual=np.maximum(table.virtual_stages, 1).astype(np.float64),
        world=world,
        tokens=micro_batch * workload.seq_len / cp,
        tp_group=group(tp, np.ones_like(tp)),
        cp_group=group(cp, tp),
        data_group=group(dp * cp, tp),
        shard_group=group(shards, tp),
        replica_group=group(dp * cp / shards, tp * shards),
        ep_group=group(ep, expert_tp),
        expert_shard_group=group(np.maximum(tp * shards / (expert_tp * ep), 1.0), expert_tp * ep),
        stages_per_domain=np.clip(np.floor(domain / (tp * cp * dp)), 1.0, pp),
    )


@dataclass(frozen=True, slots=True)
class Matmul:
    """One weight matrix of a layer, (tokens, k) x (k, n), and the dimension along which tensor
    parallelism splits it."""

    n: float
    """output width"""
    k: float
    """input width"""
    cut: str
    """'n' (column parallel), 'k' (row parallel) or '' (whole on every rank)"""
    part: str
    """role in the layer: inputs (query, key and value), output, up (with its gate) or down"""
    expert: bool = False
    """whether it exists once per expert"""
    share: float = 1.0
    """share of the layers that have it, 0 to 1"""


def layer_matmuls(model: ModelSpec) -> tuple[Matmul, ...]:
    """Return the weight matrices of one layer in order: query-key-value (several with a latent),
    output, MLP up (with its gate), MLP down.

    A model with experts has the MLPs of experts, shared experts and dense layers, in this order.
    """
    *inputs, output = model.attention_matrices
    h, gate = float(model.hidden_size), 2.0 if model.gated_mlp else 1.0
    matmuls = [Matmul(float(n), float(k), cut, "inputs") for n, k, cut in inputs]
    matmuls.append(Matmul(float(output[0]), float(output[1]), output[2], "output"))
    share = model.expert_share
    widths = [(model.ffn_hidden_size, model.num_experts > 0, share if model.num_experts else 1.0)]
    widths += [
        (model.shared_ffn_hidden_size, False, share),
        (model.dense_ffn_hidden_size, False, 1.0 - share),
    ]
    for width, expert, present in widths:
        if width and present:
            matmuls.append(Matmul(gate * width, h, "n", "up", expert, present))
            matmuls.append(Matmul(h, float(width), "k", "down", expert, present))
    return tuple(matmuls)


def weighed(model: ModelSpec, matmul: Matmul) -> float:
    """Return the multiply-adds per token of a matrix, averaged over the layers; for experts, of
    those that a token visits."""
    return matmul.n * matmul.k * matmul.share * (model.experts_per_token if matmul.expert else 1)


def layer_matmul_flops(model: ModelSpec) -> float:
    """Return the forward FLOPs per token in one layer's weight matrices (for experts, of those that
    a token visits), averaged over the layers."""
    router = 2.0 * model.hidden_size * model.num_experts * model.expert_share
    return router + sum(2.0 * weighed(model, matmul) for matmul in layer_matmuls(model))


def layer_attention_flops(model: ModelSpec, seq_len: float, *, causal: bool = True) -> float:
    """Return the forward FLOPs per token in one layer's scores and weighted values: 4*s*q, or half
    of it with a causal mask; averaged over layers with and without attention."""
    width = (model.head_dim + (model.v_head_dim or model.head_dim)) * attending_share(model)
    return 2.0 * seq_len * model.num_attention_heads * width * (0.5 if causal else 1.0)


def attending_share(model: ModelSpec) -> float:
    """Return the share of the layers with softmax attention, 0 to 1."""
    return 1.0 if model.code is None else model.code.attending_share


def with_lengths(workload: Workload, lengths: Column) -> Workload:
    """Return the workload with one sequence length per row and one document per sequence. For the
    formulas only: it is not validated, and must not be stored."""
    columnar = replace(workload, document_len=0)
    object.__setattr__(columnar, "seq_len", lengths)
    return columnar


def attended_len(workload: Workload) -> float:
    """Return the length of a single-document sequence whose tokens attend to as many others, on
    average, as those of the workload's packed documents.

    Document lengths are assumed to be exponentially distributed with mean d (the distribution of
    maximum entropy), and documents are cut at the ends of a sequence of s tokens. A token then
    attends to d * (1 - (1 - exp(-s/d)) * d/s) previous tokens, or to s/2 if the sequence is one
    document. Returns a column for a workload from `with_lengths`.
    """
    d, s = float(workload.document_len), 1.0 * workload.seq_len
    return 2.0 * d * (1.0 + math.expm1(-s / d) * d / s) if d else s


def head_flops(model: ModelSpec) -> float:
    """Return the forward FLOPs per token in the output projection, once per predicted token, and in
    the projections of multi-token prediction."""
    once = 2.0 * model.hidden_size * model.vocab_size
    return once * (1.0 + model.mtp_layers) + model.mtp_layers * 4.0 * model.hidden_size**2


def model_flops_per_token(model: ModelSpec, seq_len: float) -> float:
    """Return the FLOPs that one training step needs per token, forward and backward, without
    recomputation: the numerator of MFU.

    Causal attention counts half of the scores (PaLM, arXiv 2204.02311, appendix B counts all of
    them).
    """
    layer = layer_matmul_flops(model) + layer_attention_flops(model, seq_len)
    return 3.0 * ((model.num_layers + model.mtp_layers) * layer + head_flops(model))


def training_flops_per_token(workload: Workload) -> float:
    """Return the FLOPs per token of a training step of a workload: with its packed documents, and
    without the gradients of weights frozen by adapters. The adapters' products are neglected."""
    model = workload.model
    needed = model_flops_per_token(model, attended_len(workload))
    if workload.peft is None:
        return needed
    return (
        needed
        - (model.num_layers + model.mtp_layers) * layer_matmul_flops(model)
        - head_flops(model)
    )
