"""Peak memory of the fullest rank of the pipeline, by part.

Model states follow ZeRO (Rajbhandari et al., arXiv 1910.02054, section 5): weights, gradients, and optimizer states with master weights, each sharded
over the data-parallel ranks from its ZeRO stage on. Activations follow Korthikanti et al. (arXiv 2205.05198, section 4), multiplied by the
micro-batches in flight. The first, the fullest middle and the last rank are computed.

The peak is what the allocator reserves. Less than that must fit at once: memory that is freed but still waits for the communication stream can be
reused before a run fails. Neglected: fragmentation within the allocator (it is part of `usable_fraction`), dropout masks, and tokens that a
capacity factor drops or pads in experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.compute import CORNER, element_bytes, keeps_scores, layer_forward_s, layer_host_s
from autotune.cost.layout import Column, Layout
from autotune.cost.parameters import edge_weights, layer_weights
from autotune.cost.pipeline import in_flight
from autotune.cost.recompute import kept_elements
from autotune.cost.stages import Stages
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, MemoryParts, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak bytes of one rank of the pipeline, of every row."""

    parts: MemoryParts
    """by cause; memory that waits for the communication stream is part of `framework`"""
    waiting: Column
    """bytes of it that the allocator could reuse before it fails"""

    @property
    def needed(self) -> Column:
        """Bytes that must fit at once."""
        return np.asarray(self.parts.total - self.waiting)


def rank_memories(
    workload: Workload, table: ConfigTable, layout: Layout, stages: Stages, constants: Calibration, traits: Traits
) -> tuple[RankMemory, RankMemory, RankMemory]:
    """The first, the fullest middle and the last rank; without a pipeline all three are the same rank."""
    model = workload.model
    size = element_bytes(table)
    mixed = size < 4
    dense, experts = layer_weights(model, layout)
    embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
    shards = layout.data_group.size
    at_three, at_two, at_one = layout.zero >= 3, layout.zero >= 2, layout.zero >= 1

    weight_bytes = np.where(mixed & traits.master_weights, 2.0, 4.0)
    gradient_bytes = np.where(mixed & traits.master_weights, traits.gradient_bytes, 4.0)
    moments = 8.0 if workload.optimizer == "adamw" else 0.0
    state_bytes = moments + np.where(mixed & traits.master_weights, 4.0, 0.0)

    kept, once = _activation_bytes(workload, table, layout, constants, traits)
    cut = layout.tp if traits.vocab_parallel else np.ones_like(layout.tp)
    logits = layout.tokens * model.vocab_size / cut * (traits.logit_bytes + size - 2.0)
    whole = _waiting_bytes(workload, table, layout, constants, traits)
    usable = workload.cluster.gpu.memory_bytes * constants.usable_fraction
    alone = layout.pp == 1

    def at(rank: Column, layers: Column, edge: Column, has_head: Column) -> RankMemory:
        count = layers * (dense + experts) + edge
        sharded = (layers * dense + edge) / shards + layers * experts / np.maximum(shards / layout.ep, 1.0)
        held = in_flight(table, layout, rank)
        saved = held * layers * kept + np.where(layers > 0, once, 0.0)
        # ZeRO-3 gathers a layer while the one before it is still in use, and reduces its gradients whole
        working = np.where(at_three, 3.0 * size * np.maximum(dense + experts, edge), 0.0)
        reduced = np.where(shards > 1, constants.buffer_bytes * np.where(at_three, sharded, count), 0.0)
        parts = {
            "weights": weight_bytes * np.where(at_three, sharded, count),
            "gradients": gradient_bytes * np.where(at_two, sharded, count),
            "optimizer": state_bytes * np.where(at_one, sharded, count),
            "activations": constants.activation_factor * saved,
            "logits": has_head * held * logits,
        }
        framework = constants.framework_bytes + reduced + working
        freed = (constants.waiting_in_layer * held * layers + constants.waiting_at_head * has_head) * whole
        waiting = np.minimum(freed, np.maximum(usable - framework - sum(parts.values()), 0.0))
        return RankMemory(parts=MemoryParts(**parts, framework=framework + waiting), waiting=waiting)

    nothing = np.zeros_like(layout.pp)
    first = at(nothing, stages.first, embedding + np.where(alone, projection, 0.0), np.where(alone, 1.0, 0.0))
    middle = at(np.minimum(1.0, layout.pp - 1), stages.middle, nothing, nothing)
    last = at(layout.pp - 1, stages.last, projection + np.where(alone, embedding, 0.0), np.ones_like(logits))
    return first, middle, last


def fullest(ranks: Sequence[RankMemory]) -> RankMemory:
    """For every row, the rank that needs the most memory at once."""
    best = ranks[0]
    for other in ranks[1:]:
        more = other.needed > best.needed
        chosen = {
            f.name: np.where(more, getattr(other.parts, f.name), getattr(best.parts, f.name))
            for f in fields(MemoryParts)
        }
        best = RankMemory(parts=MemoryParts(**chosen), waiting=np.where(more, other.waiting, best.waiting))
    return best


def _waiting_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Bytes of one gathered input, times the share of such inputs that wait for the communication stream after they are freed.

    A tensor that another stream used can be reused only when that stream has passed it (`Tensor.record_stream`). So the further the host runs ahead
    of the device, the more of them stay reserved. Without a pipeline nothing stops the host until the end of the step. With a pipeline of p
    ranks, the first rank launches p - 1 micro-batches before it waits; it runs ahead if their kernels take longer than the launch of one layer.
    In a step of a single micro-batch half as many wait.
    """
    if constants.waiting_in_layer == 0 and constants.waiting_at_head == 0:
        return np.zeros_like(layout.tp)
    whole = np.where(layout.sequence_parallel, layout.tokens * element_bytes(table) * workload.model.hidden_size, 0.0)
    kernels = sum(layer_forward_s(workload, table, layout, constants, traits))
    host = layer_host_s(layout, constants) / 3.0
    ratio = (kernels * np.maximum(layout.pp - 1.0, 1.0) / np.maximum(host, 1e-9)) ** CORNER
    ahead = np.where(layout.pp > 1, ratio / (1.0 + ratio), 1.0)
    return whole * ahead * np.where(layout.accumulation > 1, 1.0, 0.5)


def _activation_bytes(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> tuple[Column, Column]:
    """Activation bytes of one layer: (kept for each micro-batch in flight, needed once during its recomputation).

    The score matrix (5 bytes per score with its softmax and dropout mask: Korthikanti et al., arXiv 2205.05198, equation 1) counts if the kernels
    store it and it is not recomputed.
    """
    model, size = workload.model, element_bytes(table)
    saved, some, boundary = (layout.tokens * size * n for n in kept_elements(model, layout, traits))
    score_matrix = 2.5 * size * layout.tokens * workload.seq_len * model.num_attention_heads / layout.tp
    scores = np.where(keeps_scores(table, constants, traits), score_matrix, 0.0)
    full, selective = table.is_word("recompute", "full"), table.is_word("recompute", "selective")
    kept = np.where(full, boundary, np.where(selective, some, saved + scores))
    once = np.where(full, saved + scores, np.where(selective, saved - some + scores, 0.0))
    return kept, once
