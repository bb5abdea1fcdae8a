"""Memory-bound kernels of a layer: what they read and write, in elements of the compute precision
per token, forward.

    h hidden   q, kv width of queries and of keys   f MLP width         all counts: reads + writes

                        fused or compiled       eager
    norm, each          2h                      18h: the cast to fp32, square, mean, scaling, cast back and gain are kernels of their own
    residual, each      3h (compiled: 2h)       3h; compiled it shares a kernel with the norm behind it and saves one write and one read
    rotary embedding    2 (q + 2kv)             and 8 (q + kv) more: casts to fp32, the complex product, casts back
    with a latent       2 q_r + 2 (kv + v)      the same: q_r is the rotated part of the queries; keys and values of widths kv and v are cut out of one matrix,
                                                and the one rotated key is copied to all heads
    gated activation    3f                      5f: silu and product are two kernels
    plain activation    2f                      2f
    stream in fp32      twice as much for residuals and activations; norms are computed in fp32 anyway (`has_wide_stream`)

Eager kernels are counted for models of Llama's form (gated MLP, which come with RMSNorm and rotary
embeddings) in trainers without fused kernels (`Traits.fused`) and without Liger's (`is_liger`; Hsu
et al., arXiv 2410.10989, section 3); LayerNorm and GELU are one kernel each in torch. Checks:
torchtitan reports 5,762 tokens/s per H100 for Llama 3.1 8B and 6,667 when compiled (16%), and these
counts make 13% of it. fms-acceleration measures 12 to 13% for fused kernels on A100 with Mistral
7B, and these counts make 10 to 11%. Neglected: dropout and biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost.layout import Column, Layout
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, ModelSpec, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedElements:
    """Elements per token on one rank, forward."""

    norms: Column
    residuals: Column
    attention: Column
    """rotary embedding"""
    mlp: Column
    """activation; the sorting of tokens by expert is counted in `experts.py`"""

    @property
    def total(self) -> Column:
        """Elements of all kernels together."""
        return self.norms + self.residuals + self.attention + self.mlp


def moved_elements(
    model: ModelSpec,
    table: ConfigTable,
    layout: Layout,
    traits: Traits,
    *,
    is_wide: NDArray[np.bool_] | bool = False,
) -> MovedElements:
    """Return the elements that the memory-bound kernels of one layer read and write, for every row.
    `is_wide`: whether the residual stream is in fp32."""
    compiled = np.asarray(table.compile, dtype=bool)
    eager = ~compiled & (model.gated_mlp and not traits.fused) & ~is_liger(table, traits)
    cut = np.where(layout.sequence_parallel, layout.tp, 1.0)
    h = float(model.hidden_size)
    q, kv = (
        float(model.num_attention_heads * model.head_dim),
        float(model.num_kv_heads * model.head_dim),
    )
    heads = float(model.num_attention_heads)
    rotated = 2.0 * (q + 2.0 * kv)
    if model.is_latent:
        rotated = 2.0 * heads * model.qk_rope_head_dim + 2.0 * (kv + heads * model.v_head_dim)
    activation = np.where(eager, 5.0, 3.0) if model.gated_mlp else 2.0
    width = np.where(is_wide, 2.0, 1.0)
    return MovedElements(
        norms=np.where(eager, 36.0, 4.0) * h / cut,
        residuals=width * np.where(compiled, 4.0, 6.0) * h / cut,
        attention=(rotated + np.where(eager, 8.0 * (q + kv), 0.0)) / layout.tp,
        mlp=width * activation * model.active_ffn_width / layout.tp,
    )


def is_liger(table: ConfigTable, traits: Traits) -> NDArray[np.bool_]:
    """Return whether each row uses Liger's kernels: norm, rotary embedding, gated activation and
    loss are one kernel each."""
    return table.is_word("loss", "fused") & traits.liger


def has_wide_stream(workload: Workload, table: ConfigTable, traits: Traits) -> NDArray[np.bool_]:
    """Return whether the residual stream of each row is in fp32, as with 4-bit weights and PEFT
    (`trainable.py`), unless the program does not cast (`Peft.upcast`). By default, weights that
    ZeRO-3 shards are not cast: they are loaded on the host, where TRL and axolotl do not change
    them."""
    peft = workload.peft
    if peft is None or peft.method != "qlora" or not has_library(workload, traits):
        return np.zeros(len(table), dtype=bool)
    if peft.upcast is not None:
        return np.full(len(table), peft.upcast)
    return np.asarray(table.zero_stage < 3)


def has_library(workload: Workload, traits: Traits) -> bool:
    """Return whether adapters are those of Hugging Face's PEFT."""
    return traits.peft or (workload.peft is not None and workload.peft.library == "peft")
