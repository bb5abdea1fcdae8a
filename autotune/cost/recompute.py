"""Recomputation: what is computed again and what is kept instead, by trainer.

    full         every layer is computed again from its input (Chen et al., arXiv 1604.06174)
    selective    depends on the trainer (`Traits.selective`):
      scores       attention scores and values, from queries, keys and values (Korthikanti et al., arXiv 2205.05198, section 5)
      attention    the whole attention block, from its input
      operators    all operators except attention and every second matmul, whose outputs are kept (torchtitan's per-operator policy)

torch's checkpoint stops as soon as the last saved tensor is restored (`set_checkpoint_early_stop`): the MLP's down projection and the collective behind
it are not repeated, unless the outputs of experts must still be weighted. Neglected: memory-bound work of a recomputed attention block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.cost.flops import layer_matmuls, weighed
from autotune.cost.layout import Column, Layout
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Shares of a layer's forward pass that its backward pass computes again, for every row."""

    matmuls: Column
    scores: Column
    moved: Column
    """memory-bound work, and launches by the host"""
    collectives: Column
    """of tensor parallelism"""


def repeated(model: ModelSpec, table: ConfigTable, layout: Layout, traits: Traits) -> Repeated:
    """The shares that are computed again."""
    full, selective = table.is_word("recompute", "full"), table.is_word("recompute", "selective")
    work = dict.fromkeys(("inputs", "output", "up", "down"), 0.0)
    for matmul in layer_matmuls(model):
        work[matmul.part] += weighed(model, matmul)
    qkv, out, up, down = work.values()
    all_four = qkv + out + up + down
    stops = traits.stops_early and not model.num_experts
    # with sequence parallelism each of the two collectives is a gather before and a scatter after its matmuls
    gather = np.where(layout.sequence_parallel, 0.25, 0.0)
    keys = model.hidden_size * model.num_kv_heads * model.head_dim
    gate = up / 2.0 if model.gated_mlp else down
    some_matmuls, some_scores, some_moved, some_gathers = {
        "scores": (0.0, 1.0, 0.0, 0.0),
        "attention": (qkv / all_four, 1.0, 0.0, 1.0),
        "operators": ((keys + out + gate) / all_four, 0.0, 1.0, 2.0),
    }[traits.selective]
    behind = np.where(layout.sequence_parallel, 0.25, 0.5)
    return Repeated(
        matmuls=np.where(full, 1.0 - stops * down / all_four, np.where(selective, some_matmuls, 0.0)),
        scores=np.where(full, 1.0, np.where(selective, some_scores, 0.0)),
        moved=np.where(full, 1.0, np.where(selective, some_moved, 0.0)),
        collectives=np.where(full, 1.0 - stops * behind, np.where(selective, some_gathers * gather, 0.0)),
    )


def kept_elements(model: ModelSpec, layout: Layout, traits: Traits) -> tuple[Column, Column, Column]:
    """Activation elements per token that one layer keeps under (no, selective, full) recomputation, without the score matrix.

    Korthikanti et al., arXiv 2205.05198, section 4: inputs of the norms, of the matmuls and of the activation; outputs of attention. Experts keep
    their inputs and outputs, once per expert that a token visits. Neglected: dropout masks.
    """
    h = float(model.hidden_size)
    q, kv = float(model.num_attention_heads * model.head_dim), float(model.num_kv_heads * model.head_dim)
    visits = model.experts_per_token
    f = model.active_ffn_width
    cut = np.where(layout.sequence_parallel, layout.tp, 1.0)
    heads = (2.0 if traits.fused else 3.0) * (q + kv) / layout.tp
    mlp = (traits.gated_kept if model.gated_mlp else 2.0) * f / layout.tp
    outer = (4.0 if traits.fused else 6.0) * h + 2.0 * visits * h * model.expert_share
    everything = outer / cut + heads + mlp
    boundary = h / cut
    some = {
        "scores": everything,
        "attention": everything - heads,
        "operators": 2.0 * boundary + (2.0 * q + kv + f) / layout.tp,
    }[traits.selective]
    return everything, some, boundary
