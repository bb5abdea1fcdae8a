"""Floating-point operations of a decoder: what the model needs, independent of how it is distributed.

    n tokens   h hidden   f MLP width   q = heads * head_dim   kv = kv_heads * head_dim   s sequence length   V vocabulary

A matmul of (m, k) by (k, n) takes 2*m*n*k FLOPs; its backward pass is two matmuls of the same size (Narayanan et al., arXiv 2104.04473, appendix).
Attention is causal: half of the s*s scores are needed. Neglected: norms, activations and the optimizer's arithmetic, which are bound by memory
and counted as bytes in `compute.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.spec import ModelSpec, Workload


@dataclass(frozen=True, slots=True)
class Matmul:
    """One weight matrix of a layer, (tokens, k) x (k, n), and the side along which tensor parallelism cuts it."""

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
    """The weight matrices of one layer in order: query-key-value (more than one with a latent), output, MLP up (with its gate), MLP down.

    In a model with experts the MLPs of all kinds follow one another: experts, the experts that every token visits, the MLP of dense layers.
    """
    *inputs, output = model.attention_matrices
    h, gate = float(model.hidden_size), 2.0 if model.gated_mlp else 1.0
    matmuls = [Matmul(float(n), float(k), cut, "inputs") for n, k, cut in inputs]
    matmuls.append(Matmul(float(output[0]), float(output[1]), output[2], "output"))
    share = model.expert_share
    widths = [(model.ffn_hidden_size, model.num_experts > 0, share if model.num_experts else 1.0)]
    widths += [(model.shared_ffn_hidden_size, False, share), (model.dense_ffn_hidden_size, False, 1.0 - share)]
    for width, expert, present in widths:
        if width and present:
            matmuls.append(Matmul(gate * width, h, "n", "up", expert, present))
            matmuls.append(Matmul(h, float(width), "k", "down", expert, present))
    return tuple(matmuls)


def weighed(model: ModelSpec, matmul: Matmul) -> float:
    """Multiply-adds per token of a matrix, averaged over the layers; of the experts, those that a token visits."""
    return matmul.n * matmul.k * matmul.share * (model.experts_per_token if matmul.expert else 1)


def layer_matmul_flops(model: ModelSpec) -> float:
    """Forward FLOPs per token in one layer's weight matrices (of the experts, those that a token visits), averaged over the layers."""
    router = 2.0 * model.hidden_size * model.num_experts * model.expert_share
    return router + sum(2.0 * weighed(model, matmul) for matmul in layer_matmuls(model))


def layer_attention_flops(model: ModelSpec, seq_len: float, *, causal: bool = True) -> float:
    """Forward FLOPs per token in one layer's scores and weighted values: 4*s*q, half of it when the causal mask is used; averaged over layers that attend and others."""
    width = (model.head_dim + (model.v_head_dim or model.head_dim)) * attending_share(model)
    return 2.0 * seq_len * model.num_attention_heads * width * (0.5 if causal else 1.0)


def attending_share(model: ModelSpec) -> float:
    """Share of the layers that attend by scores, 0 to 1."""
    return 1.0 if model.code is None else model.code.attending_share


def attended_len(workload: Workload) -> float:
    """Length of a whole sequence whose tokens attend to as many others, on average, as those of the workload's packed documents.

    Documents of d tokens on average and of exponentially distributed length (the distribution of largest entropy), cut at the ends of a sequence of s tokens: a
    token attends to d * (1 - (1 - exp(-s/d)) * d/s) tokens before it, and to s/2 where the sequence is one document.
    """
    d, s = float(workload.document_len), float(workload.seq_len)
    return 2.0 * d * (1.0 + math.expm1(-s / d) * d / s) if d else s


def head_flops(model: ModelSpec) -> float:
    """Forward FLOPs per token in the output projection, once per token that is predicted, and in the projections of multi-token prediction."""
    once = 2.0 * model.hidden_size * model.vocab_size
    return once * (1.0 + model.mtp_layers) + model.mtp_layers * 4.0 * model.hidden_size**2


def model_flops_per_token(model: ModelSpec, seq_len: float) -> float:
    """FLOPs that one training step needs per token, forward and backward, without recomputation: the numerator of MFU.

    Causal attention counts half of the scores (PaLM, arXiv 2204.02311, appendix B counts all of them).
    """
    layer = layer_matmul_flops(model) + layer_attention_flops(model, seq_len)
    return 3.0 * ((model.num_layers + model.mtp_layers) * layer + head_flops(model))


def training_flops_per_token(workload: Workload) -> float:
    """The same for a workload: of packed documents, and without gradients of the weights that adapters leave as they are. The adapters' own products are neglected."""
    model = workload.model
    needed = model_flops_per_token(model, attended_len(workload))
    if workload.peft is None:
        return needed
    return needed - (model.num_layers + model.mtp_layers) * layer_matmul_flops(model) - head_flops(model)
