"""Pipeline stages: layers on the first, the last and the fullest middle rank.

The first rank also holds the embedding, the last one the output projection and the loss. Trainers with the split 'even' give every rank L/p layers,
and one more to the first ranks if p does not divide L. With 'by_cost' (nanotron, `get_block_compute_costs`) the output projection counts as layers of
the same weight, and each rank is filled up to its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.layout import Column
from autotune.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Stages:
    """Layers by rank of the pipeline, shape (N,) each."""

    first: Column
    """layers on the first rank"""
    middle: Column
    """layers on the fullest rank between the first and the last; 0 when there is none"""
    last: Column
    """layers on the last rank; equal to `first` when there is one rank"""


def stages_of(model: ModelSpec, pp: Column, split: str) -> Stages:
    """The stages of every row; each value of `pp` is cut once."""
    degrees, where = np.unique(pp, return_inverse=True)
    cuts = np.array([_cut(model, int(p), split) for p in degrees], dtype=np.float64).reshape(-1, 3)
    return Stages(*(cuts[where, i] for i in range(3)))


def _cut(model: ModelSpec, p: int, split: str) -> tuple[float, float, float]:
    layers = cut_layers(model, p, split)
    return layers[0], max(layers[1:-1], default=0.0), layers[-1]


def cut_layers(model: ModelSpec, p: int, split: str = "even") -> list[float]:
    """Layers on each of `p` ranks."""
    total = model.num_layers
    if p > 4 * total:
        return [1.0] * min(p, 3)  # the laws of the space refuse such a config; any small answer will do
    if split == "even":
        return [float(total // p + (rank < total % p)) for rank in range(p)]
    matrices = 3 if model.gated_mlp else 2
    attention = 4 * model.num_attention_heads * model.head_dim * model.hidden_size
    layer = attention + matrices * model.ffn_hidden_size * model.hidden_size
    share = (total * layer + model.vocab_size * model.hidden_size) / p
    counts, rank, filled = [0.0] * p, 0, 0
    for _ in range(total):
        counts[rank] += 1
        filled += layer
        if filled > share * (rank + 1) and rank < p - 1:
            rank += 1
    return counts
