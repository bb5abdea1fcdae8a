"""Weights per rank under tensor, expert and pipeline parallelism."""

from __future__ import annotations

import numpy as np

from autotune.cost.layout import Column, Layout
from autotune.spec import ModelSpec


def layer_weights(model: ModelSpec, layout: Layout) -> tuple[Column, Column]:
    """Weights of one layer on a rank: (dense weights, expert weights). Norms and the router are replicated."""
    whole = float(model.norm_parameters + model.router_parameters)
    dense = model.attention_parameters / layout.tp + whole
    if model.num_experts:
        return dense, model.num_experts * model.mlp_parameters / (layout.tp * layout.ep)
    return dense + model.mlp_parameters / layout.tp, np.zeros_like(dense)


def edge_weights(model: ModelSpec, layout: Layout, vocab_parallel: bool) -> tuple[Column, Column]:
    """Weights of (embedding, output projection) on the first and last rank; tied weights count once if both are on the same rank."""
    cut = layout.tp if vocab_parallel else np.ones_like(layout.tp)
    embedding = model.embedding_parameters / cut
    head = model.vocab_size * model.hidden_size / cut
    return embedding, np.where((layout.pp == 1) & model.tied_embeddings, 0.0, head)
