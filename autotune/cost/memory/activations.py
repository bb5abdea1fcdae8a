"""Activations that one layer keeps for the backward pass, and temporary tensors of its backward
pass, in bytes per token on a rank.

    h hidden   f MLP width   q query width   v width of the values' heads   E experts   visits: experts per token

residual    the inputs of both norms, 2h                                       norm        their outputs, kept by the matrix products, 2h
            The number of norms depends on the model family (`cost/blocks.py`)
cast        if norms are separate kernels: their inputs in fp32 instead of 16 bits, 2h more; and the normalized inputs, if a separate kernel multiplies
            them by a trained gain (`Block.norm`). Compiled kernels and Liger's keep neither
stream      the residual stream is in fp32 if autocast computes with fp32 weights (`has_autocast`): twice the bytes for the inputs of norms, and for what is
            kept under full recomputation
attention   queries, keys, values and the output (Korthikanti et al., arXiv 2205.05198, section 4); with a latent also the inputs and outputs of its norms.
            Rotary embeddings keep nothing, because their gradient depends only on the angles
mlp         the input of the activation function (2f gated, f plain) and its output f
adapters    inputs of PEFT's adapters (`trainable.adapters_kept`); with frozen weights, norm, output and f are not kept
experts     the same for every expert that a token visits, with a copy h of the token; the router's probabilities
scores      the score matrix, if the kernels store it: 5 bytes per score with softmax and dropout mask (same, equation 1); 6 for transformers' softmax in fp32
            with its cast, and 2 more if scores are capped

Matrix products in 8 or 4 bits keep their input in that format if the trainer's layers do so
(`Traits.stores_narrow_inputs`: TransformerEngine). Assumption: tokens are spread evenly over
experts. Neglected: dropout masks, norm statistics.

Activations that stay in device memory under recomputation, a memory budget or offloading, in bytes
per token:

none        everything
selective   by trainer (`Traits.selective`): without the score matrix (and the up-projections of latents: module mla_up_proj), without the attention
            block, or only the outputs of costly operators
norm        without the outputs of the norms and of the activation function (Megatron-Core's modules layernorm, moe_act and similar); with torch's checkpoint
            without the norms' casts to fp32 and one tensor of a gated activation function, see `Traits.discards_outputs`
mlp         without the MLP or the experts, whose input stays (module mlp)
full        only the layer's input (Chen et al., arXiv 1604.06174)
budget b    the layer's input and the share b of everything else (torch's activation_memory_budget)
offload     activations are copied to the host while later layers run: those of two layers of one micro-batch stay

During a layer's backward pass, everything recomputed for this layer exists, and the gradients of
its widest part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.cost.blocks import PLAIN, Block, block_of
from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Layout, dense_width
from autotune.cost.time.compute import element_bytes, keeps_scores
from autotune.cost.time.elementwise import has_wide_stream, is_liger
from autotune.cost.time.recompute import BUDGETS
from autotune.cost.time.stalls import is_offloaded
from autotune.cost.trainable import (
    adapters_kept,
    casts_mlp_gradients,
    has_frozen_fp32,
    inputs_kept,
)
from autotune.cost.traits import Traits
from autotune.spec import PRECISIONS, ConfigTable, ModelSpec, Workload

STORED_BYTES = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}
"""bytes per element of an input that a matrix product keeps in its format, for one of two layouts;
the other is freed after the forward pass"""
ROUTER_BYTES = 9.0
"""bytes per expert and token: logits and probabilities in fp32, and the map of chosen experts"""


OTHER_LAYERS_KEPT = 2.5
"""activations of other layers than a decoder's, relative to a decoder's with the same weights: from
dry runs of reduced models, with a standard deviation of 0.3 of the log (`python -m
research.other_layers`)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Activations of one layer on a rank, bytes per token."""

    boundary: Column
    """the layer's input"""
    residual: Column
    """inputs of the norms"""
    norm: Column
    """outputs of the norms"""
    cast: Column
    """fp32 copies of their inputs"""
    attention: Column
    """queries, keys, values, and the output of attention"""
    projected: Column
    """the part of `attention` that is projected up from a latent; 0 without one"""
    mlp: Column
    """the MLP without the activation function's output"""
    activated: Column
    """the activation function's output"""
    visited: Column
    """copies of the tokens at the experts, and the router"""
    scores: Column
    adapters: Column
    """inputs of low-rank adapters, if each adapter keeps its own"""
    mixer: Column
    """additional activations of state-space, linear and convolution layers compared with
    attention"""
    running: Column
    """gradients during the backward pass of the layer's widest part"""

    @property
    def everything(self) -> Column:
        """All activations kept without recomputation."""
        kept = (
            self.residual
            + self.norm
            + self.cast
            + self.attention
            + self.mlp
            + self.activated
            + self.visited
        )
        return np.asarray(kept + self.scores + self.adapters + self.mixer)


def stored_share(table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes of an input kept by a matrix product relative to those of an activation,
    shape (N,)."""
    if not traits.stores_narrow_inputs:
        return np.ones(len(table))
    return np.array([STORED_BYTES.get(p, 2.0) / 2.0 for p in PRECISIONS])[table.precision]


def layer_activations(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    *,
    experts: bool,
) -> LayerActivations:
    """Return the activations of every row, for a layer with experts or one without."""
    model, size = workload.model, element_bytes(table)
    h, tp = float(model.hidden_size), layout.tp
    output = float(model.num_attention_heads * (model.v_head_dim or model.head_dim))
    cut = np.where(layout.sequence_parallel, tp, 1.0)
    stored = stored_share(table, traits)
    visits = float(model.experts_per_token) if experts else 0.0
    gate = 2.0 if model.gated_mlp else 1.0
    tiled = np.ones_like(tp)
    if traits.tiles_mlp:
        tiled = np.where(
            is_offloaded(table, "activations"), np.minimum(h / layout.tokens, 1.0), 1.0
        )
    plain = tiled * (model.shared_ffn_hidden_size if experts else dense_width(model)) / tp
    visited = tiled * visits * model.ffn_hidden_size / tp
    linear, trained = is_liger(table, traits), workload.peft is None
    eager = ~np.asarray(table.compile, dtype=bool) & (not traits.fused) & ~linear & (size < 4)
    block = block_of(model)
    if not traits.is_transformers:
        block = replace(PLAIN, of_heads=block.of_heads)
    autocast = has_autocast(workload, table, layout, traits)
    stream = np.where(has_wide_stream(workload, table, traits) | autocast, 4.0, size)
    inner = np.where(autocast, size, stream)
    moved = np.where(autocast & traits.is_transformers, 4.0, size)
    of_experts = np.maximum(inner, moved)
    # Liger's activation function recomputes the gated part
    between = np.maximum(traits.gated_kept - 3.0, 0.0) * model.gated_mlp + block.activation * eager
    between = np.where(linear, 0.0, between)
    # in fp32 both sides of the product with the router's weights are kept
    weighed = np.where(traits.weighs_in_fp32, 8.0 / size, 0.0 if traits.weighs_inside else 1.0)
    copies = moved * visits * h * (stored + weighed)
    router = ROUTER_BYTES / 2.0 * model.num_experts if experts else 0.0
    routed = np.where(block.routes_in_fp32 and experts and trained, 4.0 * h * ~autocast, 0.0)
    before, after = block.norm_bytes(stream, trained), block.norm_bytes(size, trained)
    heads = block.of_heads * (model.num_attention_heads + model.num_kv_heads) * model.head_dim / tp
    behind = block.behind * h / cut + heads
    gathered = np.where(
        (layout.cp > 1) & table.is_word("cp_style", "gather"),
        2.0 * layout.cp * model.num_kv_heads * model.head_dim / tp,
        0.0,
    )
    # Liger's activation writes both gradients over its inputs
    widest = np.where(linear, 1.0, 1.0 + gate)
    norms_kept, product_kept = inputs_kept(workload, traits)
    passed = np.maximum(inner, 4.0) if casts_mlp_gradients(workload, traits) else inner
    scores, passed_scores = (each / tp for each in _scores(workload, traits, block, size))
    running = stream * (h / cut + h) + np.maximum(
        passed * (widest * (plain + visited) + 2.0 * visits * h),
        size * 2.0 * _heads(model) / tp + passed_scores,
    )
    casts = np.where(autocast & eager & traits.is_transformers, block.casts(model), block.inputs)
    activations = LayerActivations(
        boundary=stream * h / cut,
        residual=stream * block.before * h / cut + size * behind,
        norm=norms_kept * size * casts * h * stored / (1.0 if traits.keeps_gathered else cut),
        cast=np.where(
            eager,
            (before - stream) * block.before * h / cut + (after - size) * behind,
            0.0,
        ),
        attention=size * _attention(workload, table, layout, traits, block, stored),
        projected=size * (_heads(model) - output if model.is_latent else 0.0) / tp,
        mlp=(gate + between) * (inner * plain + of_experts * visited),
        activated=product_kept * stored * (size * plain + np.maximum(size, of_experts) * visited),
        visited=copies / np.where(layout.sequence_parallel, tp / layout.expert_tp, 1.0)
        + (size * router + routed) / cut,
        scores=scores,
        adapters=adapters_kept(workload, layout, size, traits),
        mixer=np.zeros_like(tp),
        running=running + size * gathered,
    )
    if model.code is None or not model.code.layers:
        return activations
    return replace(activations, mixer=(OTHER_LAYERS_KEPT - 1.0) * activations.everything)


def has_autocast(
    workload: Workload, table: ConfigTable, layout: Layout, traits: Traits
) -> NDArray[np.bool_]:
    """Return whether rows compute in 16 bits by autocast with fp32 weights, so that sums and the
    residual stream are in fp32, shape (N,). Weights are in 16 bits under FSDP, and frozen ones too
    unless the program keeps them in fp32."""
    in_fp32 = traits.sums_in_fp32 and not workload.pure_bf16
    if workload.peft is not None:
        in_fp32 = in_fp32 and has_frozen_fp32(workload)
    return in_fp32 & (layout.zero < 2) & (element_bytes(table) < 4)


def _scores(
    workload: Workload, traits: Traits, block: Block, size: Column
) -> tuple[Column, Column]:
    """Return the score matrix on all ranks of a tensor-parallel group, bytes per token; 0 if it is
    not stored: (kept, additional gradients during the backward pass)."""
    if not keeps_scores(workload, traits):
        return np.zeros_like(size), np.zeros_like(size)
    count = workload.seq_len * workload.model.num_attention_heads
    if not traits.is_transformers or not workload.model.gated_mlp:
        return np.asarray(2.5 * size * count), np.zeros_like(size)
    # the softmax is in fp32, and its cast to 16 bits is kept too
    kept = np.where(size < 4, 6.0, 4.0) + size * block.caps_scores
    return np.asarray(kept * count), np.full_like(size, 4.0 * count)


def _heads(model: ModelSpec) -> float:
    """Return the elements per token of queries, keys, values and the output of attention."""
    q, kv = (
        float(model.num_attention_heads * model.head_dim),
        float(model.num_kv_heads * model.head_dim),
    )
    if not model.is_latent:
        return 2.0 * (q + kv)
    values = float(model.num_attention_heads * model.v_head_dim)
    plain = model.num_attention_heads * (model.head_dim - model.qk_rope_head_dim)
    # values are a view of the up-projection's output, which is therefore kept whole; queries and
    # keys are concatenated with their rotated part in new tensors
    return 2.0 * q + (plain + values) + values


def _attention(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    traits: Traits,
    block: Block,
    stored: Column,
) -> Column:
    """Return the elements per token that the attention block keeps on a rank, without its norm and
    input."""
    model = workload.model
    q, kv = (
        float(model.num_attention_heads * model.head_dim),
        float(model.num_kv_heads * model.head_dim),
    )
    output = float(model.num_attention_heads * (model.v_head_dim or model.head_dim))
    heads = _heads(model) / layout.tp
    if traits.repeats_keys or (traits.is_transformers and keeps_scores(workload, traits)):
        heads = heads + 2.0 * (q - kv) / layout.tp
    more = np.dot(block.more_heads, (q, kv, output))
    heads = heads + more / layout.tp
    # the projection keeps its input in its format, in addition to attention's output
    heads = heads + np.where(stored < 1.0, output * stored, 0.0) / layout.tp
    # the output exists on both sides of the all-to-all over heads
    heads = (
        heads
        + np.where((layout.cp > 1) & table.is_word("cp_style", "heads"), output, 0.0) / layout.tp
    )
    # both sides of the latents' norms, whole on every rank of a tensor-parallel group
    if model.is_latent:
        latents = model.q_lora_rank + model.kv_lora_rank
        kept = 4.0 if traits.is_transformers else 2.0  # norms that are separate kernels
        heads = heads + kept * latents + model.qk_rope_head_dim
    return np.asarray(heads)


def kept_bytes(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    traits: Traits,
    layer: LayerActivations,
    *,
    experts: bool,
) -> tuple[Column, Column]:
    """Return (activations kept per micro-batch in flight, additional memory during one layer's
    backward pass), bytes per token. `experts`: whether the layer has experts."""
    everything = layer.everything
    selective = {
        "scores": everything - layer.scores - layer.projected,
        "attention": everything - layer.scores - layer.attention,
        "operators": _operators(workload, layer, layout, experts=experts),
    }[traits.selective]
    # after an activation function without a gate, torch's checkpoint saves nothing, because the
    # input that it keeps is as large as the output that it drops
    activated = layer.activated if traits.discards_outputs or workload.model.gated_mlp else 0.0
    norms = layer.norm + layer.cast if traits.discards_outputs else layer.cast
    kept = everything
    for word, left in (
        ("selective", selective),
        ("norm", everything - norms - activated),
        ("mlp", everything - layer.mlp - layer.activated - layer.visited),
        ("full", layer.boundary),
    ):
        kept = np.where(table.is_word("recompute", word), left, kept)
    budget = np.array(BUDGETS)[table.activation_budget] / 100.0
    kept = np.where(
        budget < 1.0, layer.boundary + budget * np.maximum(kept - layer.boundary, 0.0), kept
    )
    return kept, everything - kept + layer.running


def mean_kept_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Return the activations that a layer keeps for one micro-batch, averaged over layers with and
    without experts, bytes per token."""
    share = workload.model.expert_share
    total = np.zeros_like(layout.tp)
    for experts, part in ((False, 1.0 - share), (True, share)):
        if part > 0:
            layer = layer_activations(workload, table, layout, constants, traits, experts=experts)
            total = (
                total
                + part * kept_bytes(workload, table, layout, traits, layer, experts=experts)[0]
            )
    return total


def on_device(table: ConfigTable, layers: Column, held: Column) -> Column:
    """Return the number of layers times micro-batches whose activations are in device memory; with
    offloading, two layers of one micro-batch while copies run. `held`: micro-batches in flight."""
    return np.where(is_offloaded(table, "activations"), np.minimum(layers, 2.0), held * layers)


def _operators(
    workload: Workload, layer: LayerActivations, layout: Layout, *, experts: bool
) -> Column:
    """Return the bytes per token kept by torchtitan's selective policy: the outputs of attention,
    of every second matrix product, and of the all-to-alls to experts and back; none of experts'
    grouped products."""
    model = workload.model
    q, kv = (
        float(model.num_attention_heads * model.head_dim),
        float(model.num_kv_heads * model.head_dim),
    )
    size = layer.boundary / model.hidden_size * np.where(layout.sequence_parallel, layout.tp, 1.0)
    plain = model.shared_ffn_hidden_size if experts else dense_width(model)
    sent = (
        2.0 * model.experts_per_token * model.hidden_size * layout.expert_tp * (layout.ep > 1)
        if experts
        else 0.0
    )
    return np.asarray(2.0 * layer.boundary + size * (2.0 * q + kv + plain + sent) / layout.tp)
