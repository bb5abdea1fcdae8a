"""Memory of the output projection and the loss: bytes per logit at the peak, by how the loss is
computed.

    b bytes of an activation element   FP32 4 bytes

full       the logits (b), their copy in fp32 (4) until the log-softmax (4) is computed; in the backward pass the gradients of the log-softmax and of
           the copy in fp32 (4 + 4): b + 12 in 16 bits, 16 in 32 (torch's `cross_entropy`: nll_loss after log_softmax). Where nothing is kept in fp32 and the
           program does not cast its logits (`Traits.casts_logits`), all four are of b bytes: 4 b. b less, if the program has let go of its logits by then. b more
           where transformers' code caps logits by a tanh (Gemma 2)
parallel   the logits and a copy in fp32 in which softmax and gradient are computed in place: b + 4 (Megatron-LM, `vocab_parallel_cross_entropy`)
copied     the logits, a copy in fp32 and one less the maximum: b + 8 (nanotron, `sharded_cross_entropy`)
chunked    projection and loss of one of 8 chunks of the sequence at a time: (b + 12) / 8, and the gradient of the hidden states in fp32
           (torchtitan from release 0.3 on, `ChunkedLossWrapper`)
kernel     one kernel without copies, which returns the gradient: 2 b (flash-attn, `CrossEntropyLoss`)
fused      one kernel that writes the gradient over the logits: b (TransformerEngine's cross-entropy). Liger's for transformers' models (`Traits.liger`) holds the logits and their
           gradient of one chunk of the tokens, b + 4; chunks are of t h / V tokens, rounded up to a power of two; and the gradients of the hidden states and of the projection, b
           each (linkedin/Liger-Kernel, `ops/fused_linear_cross_entropy.py`)

On the last rank the backward pass of a micro-batch immediately follows its loss, so only one copy
is alive; also with interleaved stages, because only the last stage has the loss. Under gpipe all
micro-batches pass the loss before the first backward pass, and each keeps its logits and softmax.
Under zero bubble the gradients of the logits wait for the projection's weight gradient. Every layer
of multi-token prediction has its own loss.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.blocks import block_of
from autotune.cost.layout import Column, Layout
from autotune.cost.time.compute import LOSS_CHUNKS, element_bytes, is_loss_chunked
from autotune.cost.time.elementwise import is_liger
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload

FP32 = 4.0


def logit_bytes(workload: Workload, table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes per logit at the peak of one micro-batch's loss."""
    size = element_bytes(table)
    cast = size if workload.pure_bf16 and not traits.casts_logits else FP32
    # transformers caps logits in 16 bits, and keeps their tanh
    capped = size * (traits.is_transformers and block_of(workload.model).caps_logits)
    kinds = {
        "full": (size if traits.holds_logits else 0.0) + capped + 3.0 * cast,
        "parallel": size + FP32,
        "copied": size + 2.0 * FP32,
        "chunked": (size + 3.0 * cast) / LOSS_CHUNKS,
        "kernel": 2.0 * size,
        "fused": size,
    }
    found = kinds[traits.loss]
    for kind in ("full", "chunked", "fused"):
        found = np.where(table.is_word("loss", kind), kinds[kind], found)
    return np.asarray(found)


def loss_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, traits: Traits
) -> tuple[Column, Column]:
    """Return the bytes of logits and loss on the last rank at its peak: (the most that the program
    may hold, the least)."""
    cut, whole = layout.tp, np.ones_like(layout.tp)
    least = _loss_bytes(workload, table, layout, traits, cut if traits.vocab_parallel else whole)
    return _loss_bytes(
        workload, table, layout, traits, whole
    ) if traits.may_cut_logits else least, least


def _loss_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, traits: Traits, ranks: Column
) -> Column:
    """Return the bytes with the vocabulary sharded over `ranks` ranks."""
    model, size = workload.model, element_bytes(table)
    losses = 1.0 + model.mtp_layers
    logits = losses * layout.tokens * model.vocab_size / ranks
    chunked = is_loss_chunked(table, traits)
    hidden = layout.tokens * model.hidden_size
    peak = logits * logit_bytes(workload, table, traits) + np.where(chunked, FP32 * hidden, 0.0)
    linear = is_liger(table, traits)
    if linear.any():
        at_once = 2.0 ** np.ceil(np.log2(np.maximum(hidden / model.vocab_size, 1.0)))
        gradients = hidden + float(model.hidden_size * model.vocab_size) / ranks
        pieces = (
            losses * np.minimum(at_once, layout.tokens) * model.vocab_size / ranks * (size + FP32)
        )
        peak = np.where(linear, np.minimum(pieces + size * gradients, peak), peak)
    kept = np.where(chunked | linear, size * hidden, logits * (size + FP32))
    gpipe = table.is_word("pp_schedule", "gpipe") & (layout.pp > 1)
    peak = peak + np.where(gpipe, (layout.accumulation - 1.0) * kept, 0.0)
    zero_bubble = table.is_word("pp_schedule", "interleaved_zero_bubble") & (layout.pp > 1)
    waiting = (
        np.where(chunked | linear, 0.0, np.minimum(layout.accumulation, layout.pp) - 1.0)
        * logits
        * size
    )
    return np.asarray(peak + np.where(zero_bubble, waiting, 0.0))
