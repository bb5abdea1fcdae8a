"""The optimizer's own step: the bytes that it moves, and the matrix products of Muon.

    bytes per weight that an update reads and writes, with gradients, weights and moments in fp32
    adamw        28    read gradient, weight, two moments; write weight and moments (Loshchilov and Hutter, arXiv 1711.05101)
    adamw_8bit   16    the same with moments of one byte each (Dettmers et al., arXiv 2110.02861)
    muon         20    one moment; embedding and output projection are updated by adamw (Jordan, https://kellerjordan.github.io/posts/muon)
    adafactor    16    the gradient is read twice, sums over rows and columns are small (Shazeer and Stern, arXiv 1804.04235)
    sgd          16    gradient, weight, and one more read of both for clipping

AdamW as torch runs it on a GPU unless it is told `fused=True` (`Traits.foreach`) is a chain of
kernels, each of which reads and writes all weights: 80 bytes, 20 of 4 (torch/optim/adam.py,
`_multi_tensor_adam`).

    decay 2    first moment 3    second moment 2 + 3    its root 2    correction 2    epsilon 2    weight 4

Muon makes the update of each matrix (a x b, a <= b) orthogonal by five Newton-Schulz steps of 4 a^2
b + 2 a^3 FLOPs, in bf16. Matrices are cut as tensor parallelism cuts them, and dealt over the ranks
that shard the optimizer (Liu et al., arXiv 2502.16982). Neglected: the gather of a matrix whose
rows lie on several ranks, and that few matrices cannot be dealt evenly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Layout, Matmul, layer_matmuls
from autotune.cost.memory.states import all_in_bf16
from autotune.cost.time.compute import peak_of
from autotune.cost.time.stalls import is_offloaded, offloaded_update_s
from autotune.cost.time.traffic import RankWeights
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload

UPDATE_BYTES = {"adamw": 28.0, "sgd": 16.0, "adamw_8bit": 16.0, "muon": 20.0, "adafactor": 16.0}
"""bytes per weight that an update moves"""
FOREACH_BYTES = 80.0
"""of AdamW as a chain of kernels"""
EIGHT_BIT_SAVED = 6.0
"""of them where gradients and weights are in bf16 and moments in one byte each: three times 2
bytes; with moments in bf16 too it is half of all"""
NEWTON_SCHULZ_STEPS = 5.0


def update_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    weights: RankWeights,
    ends: Column,
) -> Column:
    """Return the seconds to update a rank's weights. `ends`: those in the embedding and the output
    projection."""
    gpu = workload.cluster.gpu
    shards = np.where(layout.zero >= 1, layout.shard_group.size, 1.0)
    expert_shards = np.where(layout.zero >= 1, layout.expert_shard_group.size, 1.0)
    inner = (weights.dense - ends) / shards + weights.experts / expert_shards
    is_pure = all_in_bf16(workload, layout)
    moved = update_bytes(workload, inner, ends / shards, is_pure, foreach=traits.foreach)
    here = moved / (gpu.memory_bytes_per_s * constants.memory_efficiency)
    here = here + orthogonal_s(workload, layout, constants, weights.layers, shards)
    away = is_offloaded(table, "optimizer")
    if not away.any():
        return here
    there = update_bytes(workload, inner, ends / shards, is_pure)
    on_host = offloaded_update_s(workload, inner + ends / shards, there) / constants.program_level
    return np.where(away, on_host, here)


def update_bytes(
    workload: Workload,
    inner: Column,
    edges: Column,
    is_pure: NDArray[np.bool_],
    *,
    foreach: bool = False,
) -> Column:
    """Return the bytes that the update of a rank's weights moves. `inner`: weights of layers;
    `edges`: weights of the embedding and the output projection; `is_pure`: result of
    `all_in_bf16`."""
    each = UPDATE_BYTES | ({"adamw": FOREACH_BYTES} if foreach else {})
    outside = "adamw" if workload.optimizer == "muon" else workload.optimizer
    moved = inner * each[workload.optimizer] + edges * each[outside]
    halved = (
        moved - (inner + edges) * EIGHT_BIT_SAVED
        if workload.optimizer == "adamw_8bit"
        else moved / 2.0
    )
    return np.where(is_pure, halved, moved)


def orthogonal_s(
    workload: Workload, layout: Layout, constants: Calibration, layers: Column, shards: Column
) -> Column:
    """Return the seconds of Muon's Newton-Schulz steps on a rank; zero for other optimizers."""
    if workload.optimizer != "muon":
        return np.zeros_like(layout.tp)
    flops = sum(
        (
            _newton_schulz_flops(workload, layout, matrix)
            for matrix in layer_matmuls(workload.model)
        ),
        layers * 0,
    )
    return layers * flops / shards / (peak_of(workload, "bf16") * constants.matmul_efficiency)


def _newton_schulz_flops(workload: Workload, layout: Layout, matrix: Matmul) -> Column:
    """Return the FLOPs for one weight matrix of a layer, or of all its experts on the rank."""
    cut = layout.expert_tp if matrix.expert else layout.tp
    n = matrix.n / (cut if matrix.cut == "n" else 1.0)
    k = matrix.k / (cut if matrix.cut == "k" else 1.0)
    short, long = np.minimum(n, k), np.maximum(n, k)
    count = workload.model.num_experts / layout.ep if matrix.expert else 1.0
    return NEWTON_SCHULZ_STEPS * (4.0 * short**2 * long + 2.0 * short**3) * count * matrix.share
