"""Layout: where the ranks of each group sit, as columns of floats that all formulas of this package
share.

Ranks are numbered with the tensor-parallel index fastest, then context, data, and pipeline slowest,
and fill one node after another (the order of Megatron-LM and of torch's DeviceMesh). A group is
described by its size and by the number of its members that share a domain: the GPUs that the fast
link joins, which is a node on most clusters and a rack of 18 nodes on a GB200 NVL72. A job takes
equally many nodes of each domain that it needs.

Pipeline stages: layers on the first, the last and the fullest middle rank.

The first rank also holds the embedding, the last one the output projection, the loss and the layers
of multi-token prediction. How the other layers are dealt to the ranks stands in
`autotune.trainers.base.layer_split`.

Weights per rank under tensor, expert and pipeline parallelism.

Floating-point operations of a decoder: what the model needs, independent of how it is distributed.

    n tokens   h hidden   f MLP width   q = heads * head_dim   kv = kv_heads * head_dim   s sequence length   V vocabulary

A matmul of (m, k) by (k, n) takes 2*m*n*k FLOPs; its backward pass is two matmuls of the same size
(Narayanan et al., arXiv 2104.04473, appendix). Attention is causal: half of the s*s scores are
needed. Neglected: norms, activations and the optimizer's arithmetic, which are bound by memory and
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
    """Layers by rank of the pipeline, shape (N,) each."""

    first: Column
    """layers on the first rank"""
    middle: Column
    """layers on the fullest rank between the first and the last; 0 when there is none"""
    last: Column
    """layers on the last rank; equal to `first` when there is one rank"""


def stages_of(model: ModelSpec, table: ConfigTable, split: str) -> Stages:
    """The stages of every row; each value of pp is cut once. `split`: of the trainer, where the
    config leaves it to it."""
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
    """Weights of one layer on a rank, averaged over the layers: (dense ones, those of its
    experts)."""
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
    """Weights of (embedding, output projection) on the first and last rank; tied weights count once
    if both are on the same rank. What lies outside of the language model, such as a vision tower,
    is whole on the first rank."""
    cut = layout.tp if vocab_parallel else np.ones_like(layout.tp)
    # positions are not cut: there are few of them
    positions = float(model.embedding_parameters - model.vocab_size * model.hidden_size)
    other = 0.0 if model.code is None else float(model.code.other_parameters)
    embedding = model.vocab_size * model.hidden_size / cut + positions + other
    head = model.vocab_size * model.hidden_size / cut
    return embedding, np.where((layout.pp == 1) & model.tied_embeddings, 0.0, head)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one layer on a rank."""

    dense: Column
    """those that all data-parallel ranks share"""
    experts: Column
    """those of its experts"""
    shapes: Column
    """weights of one matrix of every shape"""


def weights_of_kind(model: ModelSpec, layout: Layout, *, experts: bool) -> LayerWeights:
    """The weights of a layer with experts, or of one without. Norms, the router and the projection
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
    """Inner width of the MLP of a layer without experts."""
    return model.dense_ffn_hidden_size if model.num_experts else model.ffn_hidden_size


Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that take part in one collective."""

    size: Column
    """members"""
    per_domain: Column
    """members that share a domain"""
    crowd: Column
    """all ranks that share a node, members or not"""

    @property
    def domains(self) -> Column:
        """Domains that the group spans."""
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
    """ranks over which tensor parallelism cuts one expert: tp, or 1 for a trainer that leaves
    experts whole"""
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
    """ranks"""
    tokens: Column
    """tokens per rank and micro-batch: micro_batch * seq_len / cp"""
    tp_group: Group
    cp_group: Group
    data_group: Group
    """ranks with the same weights: dp * cp"""
    shard_group: Group
    """those over which one copy is sharded: dp * cp / dp_replicas, next to one another"""
    replica_group: Group
    """those that hold the same shard: dp_replicas"""
    ep_group: Group
    """ranks that hold different experts of a layer"""
    expert_shard_group: Group
    """those of one copy that hold the same experts, over which these are sharded: tp * cp * dp /
    (expert_tp * ep * dp_replicas)"""
    stages_per_domain: Column
    """neighboring pipeline ranks that share a domain"""


def layout_of(
    workload: Workload, table: ConfigTable, *, whole_experts: bool | None = None
) -> Layout:
    """The layout of every row. `whole_experts`: whether tensor parallelism leaves experts whole;
    default: as the workload's trainer does."""
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
    """One weight matrix of a layer, (tokens, k) x (k, n), and the side along which tensor
    parallelism cuts it."""

    n: float
    """output width"""
    k: float
    """input width"""
    cut: str
    """'n' (column parallel), 'k' (row parallel) or '' (whole on every rank)"""
    part: str
    """what it belongs to: inputs (query, key and value), output, up (with its gate) or down"""
    expert: bool = False
    """whether it exists once per expert"""
    share: float = 1.0
    """share of the layers that have it, 0 to 1"""


def layer_matmuls(model: ModelSpec) -> tuple[Matmul, ...]:
    """The weight matrices of one layer in order: query-key-value (more than one with a latent),
    output, MLP up (with its gate), MLP down.

    In a model with experts the MLPs of all kinds follow one another: experts, the shared experts,
    the MLP of dense layers.
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
    """Multiply-adds per token of a matrix, averaged over the layers; of the experts, those that a
    token visits."""
    return matmul.n * matmul.k * matmul.share * (model.experts_per_token if matmul.expert else 1)


def layer_matmul_flops(model: ModelSpec) -> float:
    """Forward FLOPs per token in one layer's weight matrices (of the experts, those that a token
    visits), averaged over the layers."""
    router = 2.0 * model.hidden_size * model.num_experts * model.expert_share
    return router + sum(2.0 * weighed(model, matmul) for matmul in layer_matmuls(model))


def layer_attention_flops(model: ModelSpec, seq_len: float, *, causal: bool = True) -> float:
    """Forward FLOPs per token in one layer's scores and weighted values: 4*s*q, half of it when the
    causal mask is used; averaged over layers that attend and others."""
    width = (model.head_dim + (model.v_head_dim or model.head_dim)) * attending_share(model)
    return 2.0 * seq_len * model.num_attention_heads * width * (0.5 if causal else 1.0)


def attending_share(model: ModelSpec) -> float:
    """Share of the layers that attend by scores, 0 to 1."""
    return 1.0 if model.code is None else model.code.attending_share


def with_lengths(workload: Workload, lengths: Column) -> Workload:
    """The workload with a sequence length of each row, one document each. It is for the formulas
    alone: its length is not checked, and it is never kept."""
    found = replace(workload, document_len=0)
    object.__setattr__(found, "seq_len", lengths)
    return found


def attended_len(workload: Workload) -> float:
    """Length of a whole sequence whose tokens attend to as many others, on average, as those of the
    workload's packed documents.

    Documents of d tokens on average and of exponentially distributed length (the distribution of
    largest entropy), cut at the ends of a sequence of s tokens: a token attends to d * (1 - (1 -
    exp(-s/d)) * d/s) tokens before it, and to s/2 where the sequence is one document. A column
    where the workload is of `with_lengths`.
    """
    d, s = float(workload.document_len), 1.0 * workload.seq_len
    return 2.0 * d * (1.0 + math.expm1(-s / d) * d / s) if d else s


def head_flops(model: ModelSpec) -> float:
    """Forward FLOPs per token in the output projection, once per token that is predicted, and in
    the projections of multi-token prediction."""
    once = 2.0 * model.hidden_size * model.vocab_size
    return once * (1.0 + model.mtp_layers) + model.mtp_layers * 4.0 * model.hidden_size**2


def model_flops_per_token(model: ModelSpec, seq_len: float) -> float:
    """FLOPs that one training step needs per token, forward and backward, without recomputation:
    the numerator of MFU.

    Causal attention counts half of the scores (PaLM, arXiv 2204.02311, appendix B counts all of
    them).
    """
    layer = layer_matmul_flops(model) + layer_attention_flops(model, seq_len)
    return 3.0 * ((model.num_layers + model.mtp_layers) * layer + head_flops(model))


def training_flops_per_token(workload: Workload) -> float:
    """The same for a workload: of packed documents, and without gradients of the weights that
    adapters leave as they are. The adapters' own products are neglected."""
    model = workload.model
    needed = model_flops_per_token(model, attended_len(workload))
    if workload.peft is None:
        return needed
    return (
        needed
        - (model.num_layers + model.mtp_layers) * layer_matmul_flops(model)
        - head_flops(model)
    )
