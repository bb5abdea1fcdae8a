"""Pipeline stages: layers on the first, the last and the fullest middle rank.

The first rank also holds the embedding, the last one the output projection, the loss and the layers of multi-token prediction. How the other layers are dealt
to the ranks stands in `autotune.trainers.layer_split`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.layout import Column
from autotune.spec import ConfigTable, ModelSpec
from autotune.trainers.layer_split import cut_layers


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
    """The stages of every row; each value of pp is cut once. `split`: of the trainer, where the config leaves it to it."""
    by_edges = table.is_word("pp_split", "edges")
    kinds, where = np.unique(2 * table.pp + by_edges, return_inverse=True)
    cuts = np.array([_cut(model, int(kind) // 2, "edges" if kind % 2 else split) for kind in kinds], dtype=np.float64)
    cuts = cuts.reshape(-1, 3)
    return Stages(*(cuts[where, i] for i in range(3)))


def _cut(model: ModelSpec, p: int, split: str) -> tuple[float, float, float]:
    layers = cut_layers(model, p, split)
    layers[-1] += model.mtp_layers
    return layers[0], max(layers[1:-1], default=0.0), layers[-1]
