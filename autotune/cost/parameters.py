"""Weights per rank under tensor, expert and pipeline parallelism."""

from __future__ import annotations

import numpy as np

from autotune.cost.layout import Column, Layout
from autotune.spec import ModelSpec


def layer_weights(model: ModelSpec, layout: Layout) -> tuple[Column, Column]:
    """Weights of one layer on a rank, averaged over the layers: (dense ones, those of its experts). Norms, the router
    and the projection into a latent are replicated."""
    share = model.expert_share
    whole = float(model.norm_parameters) + model.router_parameters * share
    uncut = float(sum(n * k for n, k, cut in model.attention_matrices if not cut))
    dense = (model.attention_parameters - uncut) / layout.tp + uncut + whole
    dense = dense + (model.shared_parameters * share + model.dense_mlp_parameters * (1.0 - share)) / layout.tp
    return dense, model.num_experts * model.mlp_parameters * share / (layout.tp * layout.ep)


def edge_weights(model: ModelSpec, layout: Layout, vocab_parallel: bool) -> tuple[Column, Column]:
    """Weights of (embedding, output projection) on the first and last rank; tied weights count once if both are on the same rank."""
    cut = layout.tp if vocab_parallel else np.ones_like(layout.tp)
    embedding = model.embedding_parameters / cut
    head = model.vocab_size * model.hidden_size / cut
    return embedding, np.where((layout.pp == 1) & model.tied_embeddings, 0.0, head)
