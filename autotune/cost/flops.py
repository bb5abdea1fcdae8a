"""Floating-point operations of a decoder: what the model needs, independent of how it is distributed.

    n tokens   h hidden   f MLP width   q = heads * head_dim   kv = kv_heads * head_dim   s sequence length   V vocabulary

A matmul of (m, k) by (k, n) takes 2*m*n*k FLOPs; its backward pass is two matmuls of the same size (Narayanan et al., arXiv 2104.04473, appendix).
Attention is causal: half of the s*s scores are needed. Neglected: norms, activations and the optimizer's arithmetic, which are bound by memory
and counted as bytes in `compute.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Matmul:
    """One weight matrix of a layer, (tokens, k) x (k, n), and the side along which tensor parallelism cuts it."""

    n: float
    """output width"""
    k: float
    """input width"""
    cut: str
    """'n' (column parallel) or 'k' (row parallel)"""
    expert: bool = False
    """whether it exists once per expert"""


def layer_matmuls(model: ModelSpec) -> tuple[Matmul, ...]:
    """The weight matrices of one layer in order: query-key-value, output, MLP up (with its gate), MLP down."""
    q, kv = float(model.num_attention_heads * model.head_dim), float(model.num_kv_heads * model.head_dim)
    h, f = float(model.hidden_size), float(model.ffn_hidden_size)
    expert = model.num_experts > 0
    return (
        Matmul(q + 2 * kv, h, "n"),
        Matmul(h, q, "k"),
        Matmul((2 if model.gated_mlp else 1) * f, h, "n", expert),
        Matmul(h, f, "k", expert),
    )


def layer_matmul_flops(model: ModelSpec) -> float:
    """Forward FLOPs per token in one layer's weight matrices (of the experts, those that a token visits)."""
    visits = max(1, model.experts_per_token)
    router = 2.0 * model.hidden_size * model.num_experts
    return router + sum(2.0 * w.n * w.k * (visits if w.expert else 1) for w in layer_matmuls(model))


def layer_attention_flops(model: ModelSpec, seq_len: int, *, causal: bool = True) -> float:
    """Forward FLOPs per token of one layer's scores and weighted values: 4*s*q, half of it with a causal mask."""
    return 4.0 * seq_len * model.num_attention_heads * model.head_dim * (0.5 if causal else 1.0)


def head_flops(model: ModelSpec) -> float:
    """Forward FLOPs per token in the output projection."""
    return 2.0 * model.hidden_size * model.vocab_size


def model_flops_per_token(model: ModelSpec, seq_len: int) -> float:
    """FLOPs that one training step needs per token, forward and backward, without recomputation: the numerator of MFU.

    Causal attention counts half of the scores (PaLM, arXiv 2204.02311, appendix B counts all of them).
    """
    layer = layer_matmul_flops(model) + layer_attention_flops(model, seq_len)
    return 3.0 * (model.num_layers * layer + head_flops(model))
