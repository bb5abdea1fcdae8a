"""Between the phases: weights from the trainer's shards to the engine, and states to the host and back.

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

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.collectives import ring_bytes_s
from autotune.cost.layout import Column, Group, Layout
from autotune.spec import Workload

ENGINE_BYTES = 2.0
PAGEABLE_BYTES_PER_S = 2.5e9
TENSOR_HOST_S = 1e-3
"""host time per tensor of a model: a conversion, a copy and a remote call, assumed"""
TENSORS_PER_LAYER = 12.0
"""of a dense layer of Llama's kind: seven matrices, two norms and biases"""


def refit_s(
    workload: Workload, layout: Layout, constants: Calibration, is_split: NDArray[np.bool_], rollout_tp: Column
) -> Column:
    """Seconds in which the engine gets the weights of a step."""
    model, cluster = workload.model, workload.cluster
    whole = ENGINE_BYTES * float(model.num_parameters)
    holders = np.where(layout.zero == 3, layout.world, layout.tp * layout.pp * layout.ep)
    domain = workload.cluster.domain_ranks(layout.world)
    group = Group(holders, np.clip(domain, 1.0, holders), np.minimum(layout.world, float(cluster.gpus_per_node)))
    written = whole / rollout_tp / (cluster.gpu.memory_bytes_per_s * constants.memory_efficiency)
    gathered = ring_bytes_s(group, np.full_like(layout.tp, whole), cluster, constants)
    between = cluster.inter_node if cluster.num_nodes > 1 else cluster.intra_node
    efficiency = constants.inter_efficiency if cluster.num_nodes > 1 else constants.intra_efficiency
    sent = gathered + whole / (between.bytes_per_s * efficiency)
    experts = 3.0 * model.num_experts
    host = TENSOR_HOST_S * model.num_layers * (TENSORS_PER_LAYER + experts)
    return np.where(is_split, sent, gathered) + written + host


def copied_s(
    weights: Column, gradients: Column, optimizer: Column, what: NDArray[np.str_], *, for_update: bool
) -> Column:
    """Seconds of a phase in which states come up from the host and go down again. `what`: words of `phase_offload`."""
    moved = np.where(what == "all", weights + gradients, 0.0)
    if for_update:
        moved = moved + np.where(what == "none", 0.0, optimizer)
    return np.asarray(2.0 * moved / PAGEABLE_BYTES_PER_S)
