"""Time and memory of the update and of forward passes in post-training: the cost model of a plain
step, applied to the micro-batches simulated in `packing.py`.

    k micro-batches of T tokens on the slowest rank, with effective sequences of Q / T tokens in
    attention: a step of k micro-batches with T instead of micro_batch_size * seq_len

    one optimizer step per mini-batch and epoch, each with one reduction of gradients and one update
    of weights

The time of a pass is linear in T and Q except for host delays, so it is computed for the mean
micro-batch. Memory is that of the largest micro-batch.

Host time between kernels: engines with Megatron-Core pack and unpack sequence by sequence in
Python, and wait for the device for each length (verl: `preprocess_packed_seqs` and
`postprocess_packed_seqs`), so a pass takes an additional `SEQUENCE_HOST_S` per sequence and
`MICRO_BATCH_HOST_S` per micro-batch. Of the five loops over sequences, the first pipeline stage
runs one, for the tokens; the last stage runs those for labels, their mask, log-probabilities and
entropies (`LAST_STAGE`), and the others wait for it. RoPE that is not fused is computed separately
for each sequence, with about thirty launches per layer, forward and backward (`ROPE_HOST_S`;
Megatron-LM: `apply_rotary_pos_emb_thd`); because element-wise kernels have no weights, the forward
pass has as many as the backward. These times are from steps of a 7B model (data/post_training.csv:
micro-batches of one sequence compared with packed ones, fused compared with unfused) and do not
depend on the model's size. Engines under FSDP unpad a whole micro-batch at once.

A forward pass keeps and reduces nothing: it has the matrix products, attention and element-wise
work once, half of the tensor-parallel collectives, one gather of sharded weights, and a pipeline of
k micro-batches that fills once (k + p - 1). Log-probabilities need the logits of one micro-batch
and their log-softmax in fp32, which are freed after it.

Between phases: transfer of weights from the trainer's shards to the engine, and copies of states to
the host and back.

    N weights   b = 2 bytes per weight in engines   r tensor-parallel degree of the engine

colocated     each GPU gathers the trainer's shards layer by layer, b N bytes in total, and writes the 1/r that its engine holds (verl: `update_weights` from `state_dict` of the
              shards; NeMo-RL: refit by CUDA IPC). The ring spans the ranks with different parts: tp * pp, and all ranks that share sharded weights
split         the trainer's first copy of the weights is broadcast to all engines over the network between nodes, at worst b N bytes to each GPU, tensor by tensor
              (NeMo-RL: `broadcast_weights_for_collective`; OpenRLHF: NCCL weight sync)
host          the host names, converts and copies each tensor of the model: `TENSOR_HOST_S`
offload       states that are in host memory during generation are copied to the device before each phase that needs them and back after it: weights and gradient buffers for log-probabilities, and
              optimizer states too for the update, where logs include this time. Programs copy them tensor by tensor from pageable memory, on all GPUs of a node at once (verl:
              `offload_megatron_model_to_cpu`): `PAGEABLE_BYTES_PER_S`, from steps of a 7B model on 8 to 32 GPUs (data/post_training.csv), a tenth of the speed of a pinned copy

Neglected: quantized engines, delta compression, and freeing and allocating the engines' cache.
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
"""host time of packing per sequence and per micro-batch, s (see above)"""
LAST_STAGE = 4.0 / 5.0
"""share of the loops over sequences that the last pipeline stage runs"""
ROPE_HOST_S = 0.31e-3
"""host time of unfused RoPE per sequence and layer, forward and backward, s"""
RING_HOST_S = 0.7e-3
"""host time to launch one additional step of a context-parallel ring in a layer, forward and
backward, s (same file: micro-batches of one sequence with cp=2 compared with cp=1)"""
FSDP_LEVEL = 1.17
"""time of post-trainers' passes under FSDP relative to plain training in such a loop: log-softmax
and entropy of all logits in fp32, unmodified modules of transformers (same file)"""
FORWARD = 1.0 / 3.0
"""share of the forward pass in a layer's launches and context-parallel communication"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The passes of one model over the micro-batches of a mini-batch."""

    workload: Workload
    """a plain workload with this model and the effective sequence lengths for attention"""
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
        """Return the passes of these rows. `packed`: the packing of each row, or of all."""
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
        """Return the time of one optimizer step by cause, s."""
        stages = stages_of(self.workload.model, self.table, self.traits.split)
        times = time_parts(
            self.workload, self.table, self.layout, stages, self.constants, self.traits
        )
        return replace(
            times, other=times.other + self.host_s(1.0) + self.ring_host_s(np.asarray(times.total))
        )

    def ring_host_s(self, step: Column) -> Column:
        """Return the time by which the host's launches with context-parallel rings exceed the step,
        s. `step`: time of the step without them, s."""
        layers = self.workload.model.num_layers / self.layout.pp
        launches = layers * (
            layer_host_s(self.table, self.layout, self.constants)
            + RING_HOST_S * (self.layout.cp - 1.0)
        )
        return np.where(
            self.layout.cp > 1, np.maximum(self.layout.accumulation * launches - step, 0.0), 0.0
        )

    def host_s(self, share: float) -> Column:
        """Return the time of a pass in which the host packs sequences, s. `share`: 1 for an update,
        `FORWARD` for a forward pass."""
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
        """Return the peak memory of the update on the rank with the highest peak."""
        fullest_batch = replace(self.layout, tokens=self.packed.most_tokens / self.layout.cp)
        stages = stages_of(self.workload.model, self.table, self.traits.split)
        return fullest(
            rank_memories(
                self.workload, self.table, fullest_batch, stages, self.constants, self.traits
            )
        )

    def logits_bytes(self) -> Column:
        """Return the logits of the largest micro-batch and their log-softmax in a forward pass,
        bytes."""
        cut = self.layout.tp if self.traits.vocab_parallel else 1.0
        logits = self.packed.most_tokens / self.layout.cp * self.workload.model.vocab_size / cut
        return np.asarray(logits * (element_bytes(self.table) + 4.0))

    def forward(self) -> Column:
        """Return the time of one forward pass over all micro-batches, s."""
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
"""bandwidth per GPU of copies between device and pageable host memory, bytes/s (see above)"""
TENSOR_HOST_S = 1e-3
"""assumed host time per tensor of a model for a conversion, a copy and a remote call, s"""
TENSORS_PER_LAYER = 12.0
"""tensors of a dense layer like Llama's: seven matrices, two norms and biases"""


def refit_s(
    workload: Workload,
    layout: Layout,
    constants: Calibration,
    is_split: NDArray[np.bool_],
    rollout_tp: Column,
) -> Column:
    """Return the time to transfer the updated weights to the engine, s. `is_split`: whether
    generation has its own GPUs; `rollout_tp`: tensor-parallel degree of the engine."""
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
    """Return the time of a phase to copy offloaded states to the device and back, s. `what`: values
    of `phase_offload`; the other columns are bytes."""
    moved = np.where(what == "all", weights + gradients, 0.0)
    if for_update:
        moved = moved + np.where(what == "none", 0.0, optimizer)
    return np.asarray(2.0 * moved / PAGEABLE_BYTES_PER_S)
