"""What recomputation, a memory budget and offloading leave of a layer's activations in device memory, in bytes per token.

none        everything
selective   by trainer (`Traits.selective`): without the score matrix (and what latents are projected up to: module mla_up_proj), without the attention
            block, or the outputs of the costly operators alone
norm        without the outputs of the norms and of the activation function (Megatron-Core's modules layernorm, moe_act and their like); with torch's checkpoint
            without the norms' casts to fp32 and one tensor of a gated activation function, see `Traits.discards_outputs`
mlp         without the MLP or the experts, whose input stays (module mlp)
full        the layer's input alone (Chen et al., arXiv 1604.06174)
budget b    of what lies between everything and the layer's input, the share b (torch's activation_memory_budget)
offload     the layer's activations are copied to the host while later layers run: two layers' worth stays, of one micro-batch

While a layer's backward pass runs, what was dropped is whole again for that layer, and the gradients of its widest part live.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.activations import LayerActivations, layer_activations
from autotune.cost.calibration import Calibration
from autotune.cost.host_link import is_offloaded
from autotune.cost.layout import Column, Layout
from autotune.cost.parameters import dense_width
from autotune.cost.recompute import BUDGETS
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload


def kept_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, traits: Traits, layer: LayerActivations, *, experts: bool
) -> tuple[Column, Column]:
    """(kept for each micro-batch in flight, needed while one layer's backward pass runs), bytes per token; `experts`: of a layer with experts."""
    everything = layer.everything
    some = {
        "scores": everything - layer.scores - layer.projected,
        "attention": everything - layer.scores - layer.attention,
        "operators": _operators(workload, layer, layout, experts=experts),
    }[traits.selective]
    # behind an activation function that is no product, what torch's checkpoint drops is what it keeps as the input
    activated = layer.activated if traits.discards_outputs or workload.model.gated_mlp else 0.0
    norms = layer.norm + layer.cast if traits.discards_outputs else layer.cast
    kept = everything
    for word, left in (
        ("selective", some),
        ("norm", everything - norms - activated),
        ("mlp", everything - layer.mlp - layer.activated - layer.visited),
        ("full", layer.boundary),
    ):
        kept = np.where(table.is_word("recompute", word), left, kept)
    budget = np.array(BUDGETS)[table.activation_budget] / 100.0
    kept = np.where(budget < 1.0, layer.boundary + budget * np.maximum(kept - layer.boundary, 0.0), kept)
    return kept, everything - kept + layer.running


def mean_kept_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Bytes per token that a layer keeps for one micro-batch, averaged over layers with and without experts."""
    share = workload.model.expert_share
    total = np.zeros_like(layout.tp)
    for experts, part in ((False, 1.0 - share), (True, share)):
        if part > 0:
            layer = layer_activations(workload, table, layout, constants, traits, experts=experts)
            total = total + part * kept_bytes(workload, table, layout, traits, layer, experts=experts)[0]
    return total


def on_device(table: ConfigTable, layers: Column, held: Column) -> Column:
    """Layers times micro-batches whose activations are in device memory: with offloading two layers of one micro-batch, while copies run."""
    return np.where(is_offloaded(table, "activations"), np.minimum(layers, 2.0), held * layers)


def _operators(workload: Workload, layer: LayerActivations, layout: Layout, *, experts: bool) -> Column:
    """torchtitan's policy: the outputs of attention, of every second matrix product, and of the all-to-alls to experts and back; none of experts' grouped products."""
    model = workload.model
    q, kv = float(model.num_attention_heads * model.head_dim), float(model.num_kv_heads * model.head_dim)
    size = layer.boundary / model.hidden_size * np.where(layout.sequence_parallel, layout.tp, 1.0)
    plain = model.shared_ffn_hidden_size if experts else dense_width(model)
    sent = 2.0 * model.experts_per_token * model.hidden_size * layout.expert_tp * (layout.ep > 1) if experts else 0.0
    return np.asarray(2.0 * layer.boundary + size * (2.0 * q + kv + plain + sent) / layout.tp)
