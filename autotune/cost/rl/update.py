"""The update, and the forward passes before it: the cost model of a plain step on the micro-batches
that `packing.py` found.

    k micro-batches of T tokens of the slowest rank, whose tokens attend as those of sequences of Q / T tokens: a step of k micro-batches with T in place of micro_batch_size * seq_len
    an optimizer step per mini-batch and epoch: gradients are reduced and weights are updated once for each

A pass over the micro-batches is linear in T and in Q but for what the host delays, so the mean
micro-batch stands for all of them. The memory is that of the fullest.

Between the kernels the host packs and unpacks. Megatron-Core's engines do it sequence by sequence,
in Python, and wait for the device for each length (verl: `preprocess_packed_seqs` and
`postprocess_packed_seqs`), so that a pass takes `SEQUENCE_HOST_S` for each sequence and
`MICRO_BATCH_HOST_S` for each micro-batch beside what its layers take. Of the five loops over
sequences the first stage of a pipeline has one, that of the tokens; labels, their mask,
log-probabilities and entropies are the last stage's (`LAST_STAGE`), for which the others wait.
Where RoPE is not fused it is computed for each sequence apart, some thirty launches for each layer
forward and backward (`ROPE_HOST_S`; Megatron-LM: `apply_rotary_pos_emb_thd`): of element-wise
kernels, which have no weights, the forward pass has as many as the backward. Read off steps of a 7B
(data/post_training.csv: micro-batches of one sequence against packed ones, fused against unfused);
no size of the model is in them. Engines under FSDP unpad a whole micro-batch at once.

A forward pass keeps nothing and reduces nothing: matrix products, attention and element-wise work
once, half of the tensor-parallel collectives, one gather of sharded weights, a pipeline of k
micro-batches that fills once (k + p - 1). Log-probabilities need the logits of one micro-batch and
their log-softmax in fp32, which are freed with it.

Between the phases: weights from the trainer's shards to the engine, and states to the host and
back.

    N weights   b = 2 bytes, as engines take them   r the engine's tensor-parallel degree

colocated     each GPU gathers layer by layer what the trainer's shards hold, b N bytes in all, keeps the 1/r that its engine has and writes it (verl: `update_weights` from `state_dict` of the
              shards; NeMo-RL: refit by CUDA IPC). The ring reaches over the ranks that hold different parts: tp * pp, and all that share sharded weights
split         the trainer's first copy of the weights is broadcast to all engines over the network between nodes, b N bytes into each GPU in the worst case, one tensor after the other
              (NeMo-RL: `broadcast_weights_for_collective`; OpenRLHF: NCCL weight sync)
host          each of a model's tensors is named, converted and copied by the host: `TENSOR_HOST_S`
offload       states that are in host memory while the engine generates come up before each phase that needs them and go down after it: weights and gradients' buffers for log-probabilities, and
              the optimizer's states too for the update, part of which phase this is in logs. Programs copy them tensor by tensor from memory that is not pinned, all GPUs of a node at
              once (verl: `offload_megatron_model_to_cpu`): `PAGEABLE_BYTES_PER_S`, read off steps of a 7B on 8 to 32 GPUs (data/post_training.csv), a tenth of what a pinned copy reaches

Neglected: quantized engines, delta compression, and that engines free and allocate their cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration, with_columns
from autotune.cost.layout import (
    Column,
    Group,
    Layout,
    edge_weights,
    layer_weights,
    layout_of,
    stages_of,
    with_lengths,
)
from autotune.cost.memory.peak import RankMemory, fullest, rank_memories
from autotune.cost.rl.packing import Packed
from autotune.cost.time.collectives import ring_bytes_s, ring_latency_s
from autotune.cost.time.compute import (
    element_bytes,
    exposed,
    head_step_s,
    layer_forward_s,
    layer_host_s,
    smooth_maximum,
)
from autotune.cost.time.experts import expert_layer_s
from autotune.cost.time.step import time_parts
from autotune.cost.time.traffic import context_s, tensor_layer_s
from autotune.cost.traits import POST_TRAINERS, Traits, loop_of
from autotune.space.rl_laws import ENGINE_BYTES
from autotune.spec import ConfigTable, TimeParts, Workload
from autotune.trainers.base.whole_experts import keeps_experts_whole

SEQUENCE_HOST_S, MICRO_BATCH_HOST_S = 4.5e-3, 25e-3
LAST_STAGE = 4.0 / 5.0
ROPE_HOST_S = 0.31e-3
"""per sequence and layer, forward and backward"""
RING_HOST_S = 0.7e-3
"""host time to launch one more step of a ring of context parallelism in a layer, forward and
backward (same rows: micro-batches of one sequence with cp=2 against cp=1)"""
FSDP_LEVEL = 1.17
"""time of post-trainers' passes under FSDP over that of plain trainings by such a loop: log-softmax
and entropy of all logits in fp32, transformers' modules as they are (same rows)"""
FORWARD = 1.0 / 3.0
"""share of a layer's launches and context-parallel exchange that belongs to the forward pass"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One model's passes over the micro-batches of a mini-batch: what is needed to cost them."""

    workload: Workload
    """a plain one: the model that passes, sequences as long as tokens attend"""
    table: ConfigTable
    layout: Layout
    packed: Packed
    constants: Calibration
    traits: Traits
    by_sequence: bool
    """whether sequences are packed one by one on the host"""
    fused_rope: bool

    @classmethod
    def of(
        cls,
        workload: Workload,
        table: ConfigTable,
        packed: Packed,
        constants: Calibration,
        traits: Traits,
    ) -> Pass:
        """The passes of these rows; `packed`: how each of them packs, or how all do."""
        lengths = np.maximum(np.ceil(packed.attended), 1.0)
        plain = with_lengths(replace(workload, rl=None, trainer=loop_of(workload)), lengths)
        layout = layout_of(plain, table, whole_experts=keeps_experts_whole(workload))
        found = replace(
            layout,
            tokens=packed.tokens / layout.cp,
            accumulation=np.full_like(layout.tp, packed.micro_batches),
        )
        rl = workload.rl
        if rl is not None and rl.engine == "fsdp" and workload.trainer in POST_TRAINERS:
            constants = with_columns(constants, {"level": constants.level * FSDP_LEVEL})
        return cls(
            workload=plain, table=table, layout=found, packed=packed, constants=constants, traits=traits,
            by_sequence=rl is not None and rl.engine == "megatron" and workload.trainer in POST_TRAINERS,
            fused_rope=rl is None or rl.fused_rope,
        )  # fmt: skip

    def update(self) -> TimeParts:
        """Seconds of one optimizer step by cause."""
        stages = stages_of(self.workload.model, self.table, self.traits.split)
        times = time_parts(
            self.workload, self.table, self.layout, stages, self.constants, self.traits
        )
        return replace(
            times, other=times.other + self.host_s(1.0) + self.ring_host_s(np.asarray(times.total))
        )

    def ring_host_s(self, step: Column) -> Column:
        """Seconds by which the host's launches of rings of context parallelism exceed a step's
        micro-batches; `step`: without them, s."""
        layers = self.workload.model.num_layers / self.layout.pp
        launches = layers * (
            layer_host_s(self.table, self.layout, self.constants)
            + RING_HOST_S * (self.layout.cp - 1.0)
        )
        return np.where(
            self.layout.cp > 1, np.maximum(self.layout.accumulation * launches - step, 0.0), 0.0
        )

    def host_s(self, share: float) -> Column:
        """Seconds of a pass in which the host packs sequences; `share`: of the layers' own launches
        that the pass has."""
        if not self.by_sequence:
            return np.zeros_like(self.layout.tp)
        layers = self.workload.model.num_layers / self.layout.pp
        again = self.table.is_word("recompute", "full")
        passes = np.where(again, 1.5, 1.0) if share == 1.0 else 0.5
        rope = np.zeros_like(layers) if self.fused_rope else passes * ROPE_HOST_S * layers
        loops = SEQUENCE_HOST_S * np.where(self.layout.pp > 1, LAST_STAGE, 1.0)
        each = (loops + rope) * self.packed.sequences
        return np.asarray(
            each + share * MICRO_BATCH_HOST_S / self.layout.pp * self.layout.accumulation
        )

    def memory(self) -> RankMemory:
        """The peak of the update on the fullest rank."""
        fullest_batch = replace(self.layout, tokens=self.packed.most_tokens / self.layout.cp)
        stages = stages_of(self.workload.model, self.table, self.traits.split)
        return fullest(
            rank_memories(
                self.workload, self.table, fullest_batch, stages, self.constants, self.traits
            )
        )

    def logits_bytes(self) -> Column:
        """Bytes of the logits of the fullest micro-batch and of their log-softmax, in a forward
        pass."""
        cut = self.layout.tp if self.traits.vocab_parallel else 1.0
        logits = self.packed.most_tokens / self.layout.cp * self.workload.model.vocab_size / cut
        return np.asarray(logits * (element_bytes(self.table) + 4.0))

    def forward(self) -> Column:
        """Seconds of one forward pass over all micro-batches."""
        workload, table, layout, constants, traits = (
            self.workload,
            self.table,
            self.layout,
            self.constants,
            self.traits,
        )
        model, cluster = workload.model, workload.cluster
        matmuls, attention, moved = layer_forward_s(workload, table, layout, constants, traits)
        nothing = np.zeros_like(layout.tp)
        kernels = matmuls + attention + moved
        between = 0.5 * tensor_layer_s(workload, table, layout, constants, nothing)
        between = between + FORWARD * context_s(
            workload, table, layout, constants, traits, nothing, 3.0 * attention
        )
        if model.num_experts:
            between = between + 0.5 * expert_layer_s(
                workload, table, layout, constants, traits, nothing, element_bytes(table)
            )
        host = FORWARD * layer_host_s(table, layout, constants)
        layer = (
            kernels + host
            if cluster.gpu.is_cpu
            else smooth_maximum(kernels + between, host) - between
        )
        stages = stages_of(model, table, traits.split)
        own = np.maximum.reduce([stages.first, stages.middle, stages.last])
        head = FORWARD * head_step_s(workload, table, layout, constants, traits)
        each = own * (layer + between) + head + constants.micro_batch_host_s
        dense, experts = layer_weights(model, layout)
        size = element_bytes(table)
        embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
        whole = size * (own * dense + (embedding + projection) / layout.pp)
        gather = ring_bytes_s(layout.shard_group, whole, cluster, constants)
        gather = gather + ring_bytes_s(
            layout.expert_shard_group, size * own * experts, cluster, constants
        )
        gather = gather + ring_latency_s(layout.shard_group, cluster, constants) * (own + 1.0)
        gathered = np.where((layout.zero == 3) & (layout.data_group.size > 1), gather, 0.0)
        each = each + exposed(gathered, each, constants.data_overlap)
        return np.asarray(
            constants.level * (layout.accumulation + layout.pp - 1.0) * each + self.host_s(FORWARD)
        )


PAGEABLE_BYTES_PER_S = 2.5e9
TENSOR_HOST_S = 1e-3
"""host time per tensor of a model: a conversion, a copy and a remote call, assumed"""
TENSORS_PER_LAYER = 12.0
"""of a dense layer of Llama's kind: seven matrices, two norms and biases"""


def refit_s(
    workload: Workload,
    layout: Layout,
    constants: Calibration,
    is_split: NDArray[np.bool_],
    rollout_tp: Column,
) -> Column:
    """Seconds in which the engine gets the weights of a step."""
    model, cluster = workload.model, workload.cluster
    whole = ENGINE_BYTES * float(model.num_parameters)
    holders = np.where(layout.zero == 3, layout.world, layout.tp * layout.pp * layout.ep)
    domain = workload.cluster.domain_ranks(layout.world)
    group = Group(
        holders,
        np.clip(domain, 1.0, holders),
        np.minimum(layout.world, float(cluster.gpus_per_node)),
    )
    written = whole / rollout_tp / (cluster.gpu.memory_bytes_per_s * constants.memory_efficiency)
    gathered = ring_bytes_s(group, np.full_like(layout.tp, whole), cluster, constants)
    between = cluster.inter_node if cluster.num_nodes > 1 else cluster.intra_node
    efficiency = constants.inter_efficiency if cluster.num_nodes > 1 else constants.intra_efficiency
    sent = gathered + whole / (between.bytes_per_s * efficiency)
    experts = 3.0 * model.num_experts
    host = TENSOR_HOST_S * model.num_layers * (TENSORS_PER_LAYER + experts)
    return np.where(is_split, sent, gathered) + written + host


def copied_s(
    weights: Column,
    gradients: Column,
    optimizer: Column,
    what: NDArray[np.str_],
    *,
    for_update: bool,
) -> Column:
    """Seconds of a phase in which states come up from the host and go down again. `what`: words of
    `phase_offload`."""
    moved = np.where(what == "all", weights + gradients, 0.0)
    if for_update:
        moved = moved + np.where(what == "none", 0.0, optimizer)
    return np.asarray(2.0 * moved / PAGEABLE_BYTES_PER_S)
