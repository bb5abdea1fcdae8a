"""Weights per rank under tensor, expert and pipeline parallelism."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.layout import Column, Layout
from autotune.spec import ModelSpec


def layer_weights(model: ModelSpec, layout: Layout) -> tuple[Column, Column]:
    """Weights of one layer on a rank, averaged over the layers: (dense ones, those of its experts)."""
    share = model.expert_share
    kinds = [(1.0 - share, False), (share, True)]
    found = [(part, weights_of_kind(model, layout, experts=experts)) for part, experts in kinds if part > 0]
    dense = sum(part * kind.dense for part, kind in found)
    return np.asarray(dense), np.asarray(sum(part * kind.experts for part, kind in found))


def edge_weights(model: ModelSpec, layout: Layout, vocab_parallel: bool) -> tuple[Column, Column]:
    """Weights of (embedding, output projection) on the first and last rank; tied weights count once if both are on the same rank. What lies outside of the
    language model, such as a vision tower, is whole on the first rank."""
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
    """The weights of a layer with experts, or of one without. Norms, the router and the projection into a latent are replicated."""
    one = np.ones_like(layout.tp)
    uncut = float(sum(n * k for n, k, cut in model.attention_matrices if not cut))
    whole = uncut + model.norm_parameters + (model.router_parameters if experts else 0)
    mlp = model.shared_parameters if experts else model.dense_mlp_parameters
    matrices = [(n * k, cut) for n, k, cut in model.attention_matrices]
    gate = 3 if model.gated_mlp else 2
    widths = (model.ffn_hidden_size, model.shared_ffn_hidden_size) if experts else (dense_width(model),)
    matrices += [(gate * model.hidden_size * width, "n") for width in widths]
    shapes = sum(weights / (layout.tp if cut else one) for weights, cut in matrices)
    return LayerWeights(
        dense=(model.attention_parameters - uncut + mlp) / layout.tp + whole,
        experts=model.num_experts * model.mlp_parameters / (layout.expert_tp * layout.ep) if experts else 0.0 * one,
        shapes=np.asarray(shapes),
    )


def dense_width(model: ModelSpec) -> int:
    """Inner width of the MLP of a layer without experts."""
    return model.dense_ffn_hidden_size if model.num_experts else model.ffn_hidden_size
