"""Peak memory of the fullest rank of the pipeline, by part.

States follow ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5): weights, gradients, and optimizer states with master weights, each sharded over
the data-parallel ranks from its stage on. Activations follow Korthikanti et al. (arXiv 2205.05198, section 4), times the micro-batches in flight.
The first, the fullest middle and the last rank are counted, and the largest sum is the peak. Neglected: fragmentation within the allocator (it
is in `usable_fraction`), dropout masks, and what a capacity factor drops or pads in experts.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.compute import element_bytes
from autotune.cost.layout import Column, Layout
from autotune.cost.parameters import edge_weights, layer_weights
from autotune.cost.pipeline import in_flight
from autotune.cost.stages import Stages
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, MemoryParts, Workload


def memory_parts(
    workload: Workload, table: ConfigTable, layout: Layout, stages: Stages, constants: Calibration, traits: Traits
) -> MemoryParts:
    """Peak bytes by cause, of every row: those of the rank (first, middle or last) whose sum is largest."""
    model = workload.model
    size = element_bytes(table)
    mixed = size < 4
    dense, experts = layer_weights(model, layout)
    embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
    shards = layout.data_group.size
    at_three, at_two, at_one = layout.zero >= 3, layout.zero >= 2, layout.zero >= 1

    weight_bytes = np.where(mixed & traits.master_weights, 2.0, 4.0)
    gradient_bytes = np.where(mixed & traits.master_weights, traits.gradient_bytes, 4.0)
    moments = 8.0 if workload.optimizer == "adamw" else 4.0
    state_bytes = moments + np.where(mixed & traits.master_weights, 4.0, 0.0)

    kept, once = _activation_bytes(workload, table, layout, constants, traits)
    cut = layout.tp if traits.vocab_parallel else np.ones_like(layout.tp)
    logits = layout.tokens * model.vocab_size / cut * (traits.logit_bytes + size - 2.0)
    whole = np.where(layout.sequence_parallel, layout.tokens * size * model.hidden_size, 0.0)
    at_head = whole * traits.gathered_at_head

    best: dict[str, np.ndarray] | None = None
    alone = layout.pp == 1
    ranks = (
        (
            np.zeros_like(layout.pp),
            stages.first,
            embedding + np.where(alone, projection, 0.0),
            np.where(alone, 1.0, 0.0),
        ),
        (np.minimum(1.0, layout.pp - 1), stages.middle, np.zeros_like(embedding), np.zeros_like(logits)),
        (layout.pp - 1, stages.last, projection + np.where(alone, embedding, 0.0), np.ones_like(logits)),
    )
    for rank, layers, edge, has_head in ranks:
        count = layers * (dense + experts) + edge
        sharded = (layers * dense + edge) / shards + layers * experts / np.maximum(shards / layout.ep, 1.0)
        held = in_flight(table, layout, rank)
        saved = held * layers * kept + np.where(layers > 0, once, 0.0)
        parts = {
            "weights": weight_bytes * np.where(at_three, sharded, count),
            "gradients": gradient_bytes * np.where(at_two, sharded, count),
            "optimizer": state_bytes * np.where(at_one, sharded, count),
            "activations": constants.activation_factor * saved
            + held * layers * traits.gathered_inputs * whole
            + has_head * at_head,
            "logits": has_head * held * logits,
        }
        # ZeRO-3 gathers a layer while the one before it is still in use, and reduces its gradients whole
        working = 3.0 * size * np.maximum(dense + experts, edge)
        buffers = constants.buffer_bytes * np.where(at_three, sharded, count) + np.where(at_three, working, 0.0)
        parts["framework"] = constants.framework_bytes + buffers
        if best is None:
            best = parts
        else:
            more = sum(parts.values()) > sum(best.values())
            best = {name: np.where(more, parts[name], best[name]) for name in parts}
    assert best is not None  # there are three ranks
    return MemoryParts(**best)


def _activation_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> tuple[Column, Column]:
    """Bytes of activations: (that one layer keeps for one micro-batch in flight, that one layer needs once while it is recomputed).

    Korthikanti et al., arXiv 2205.05198, section 4: inputs of the norms, of the matmuls and of the activation; outputs of attention. The score
    matrix (5 bytes per score with its softmax and dropout mask, equation 1) counts where kernels keep it and nothing recomputes it.
    Dropout masks outside attention are neglected.
    """
    model = workload.model
    size = element_bytes(table)
    h = float(model.hidden_size)
    q, kv = float(model.num_attention_heads * model.head_dim), float(model.num_kv_heads * model.head_dim)
    f = float(model.ffn_hidden_size) * max(1, model.experts_per_token)
    cut = np.where(layout.sequence_parallel, layout.tp, 1.0)
    outer = (4.0 if traits.fused else 6.0) * h
    inner = (2.0 if traits.fused else 3.0) * (q + kv) + (traits.gated_kept if model.gated_mlp else 2.0) * f
    saved = layout.tokens * size * (outer / cut + inner / layout.tp)
    scores = np.zeros_like(saved)
    if constants.score_bytes > 0:
        scores = 2.5 * size * layout.tokens * workload.seq_len * model.num_attention_heads / layout.tp
    full, selective = table.is_word("recompute", "full"), table.is_word("recompute", "selective")
    boundary = layout.tokens * size * h / cut
    kept = np.where(full, boundary, np.where(selective, saved, saved + scores))
    once = np.where(full, saved + scores, np.where(selective, scores, 0.0))
    return kept, once
