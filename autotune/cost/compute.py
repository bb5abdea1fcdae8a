"""Kernel time of one micro-batch on one rank: matmuls, attention, memory-bound work, and the host that launches them.

A matmul of m x n x k takes its FLOPs at the fitted fraction of the peak, and longer by `half_size * (1/m + 1/n + 1/k)`: the bytes that it
reads and writes per FLOP, the roofline's two terms added up (Williams et al., CACM 2009). Tile quantization is neglected.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.flops import head_flops, layer_attention_flops, layer_matmuls
from autotune.cost.layout import Column, Layout
from autotune.cost.traits import Traits
from autotune.errors import SpecError
from autotune.spec import PRECISIONS, ConfigTable, Workload

_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 2.0}
"""bytes of one activation element; fp8 matmuls still keep bf16 activations"""
_FALLBACK = {"tf32": "fp32", "fp16": "bf16", "bf16": "fp32", "fp8": "bf16"}


def peak_flops_per_s(workload: Workload, table: ConfigTable) -> Column:
    """Datasheet peak for each row's precision; a precision that the GPU lacks runs at the next wider one's."""
    peaks = workload.cluster.gpu.peak_flops_per_s

    def peak(precision: str) -> float:
        while precision not in peaks:
            if precision not in _FALLBACK:
                return float(max(peaks.values()))
            precision = _FALLBACK[precision]
        return float(peaks[precision])

    column = np.array([peak(p) for p in PRECISIONS])[table.precision]
    if not np.all(column > 0):
        raise SpecError(f"the GPU {workload.cluster.gpu.name} has no peak FLOP/s", field="peak_flops_per_s")
    return column


def element_bytes(table: ConfigTable) -> Column:
    """Bytes of one activation element."""
    return np.array([_BYTES[p] for p in PRECISIONS])[table.precision]


def layer_forward_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> tuple[Column, Column, Column]:
    """Seconds of one layer's forward pass for one micro-batch: (matmuls, attention's scores, memory-bound work)."""
    model, gpu = workload.model, workload.cluster.gpu
    peak = peak_flops_per_s(workload, table)
    seconds_per_flop = 1.0 / (peak * constants.matmul_efficiency)
    matmuls = np.zeros_like(layout.tp)
    for weight in layer_matmuls(model):
        n = weight.n / (layout.tp if weight.cut == "n" else 1.0)
        k = weight.k / (layout.tp if weight.cut == "k" else 1.0)
        m = layout.tokens
        visits = 1.0
        if weight.expert:
            visits = model.experts_per_token
            m = np.maximum(layout.tokens * visits * layout.ep / model.num_experts, 1.0)
        flops = 2.0 * layout.tokens * visits * n * k
        matmuls = matmuls + flops * seconds_per_flop * (1.0 + constants.half_size * (1.0 / m + 1.0 / n + 1.0 / k))
    scores = layout.tokens * layer_attention_flops(model, workload.seq_len) / layout.tp
    attention = scores / (peak * constants.attention_efficiency)
    size = element_bytes(table)
    cut = np.where(layout.sequence_parallel, layout.tp, 1.0)
    inner = (model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim * 2.0
    inner = inner + (3.0 if model.gated_mlp else 2.0) * model.ffn_hidden_size * max(1, model.experts_per_token)
    passes = np.where(table.compile, 0.6, 1.0)
    moved = layout.tokens * size * passes * (10.0 * model.hidden_size / cut + inner / layout.tp)
    return matmuls, attention, moved / (gpu.memory_bytes_per_s * constants.memory_efficiency)


def head_step_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Seconds of the output projection and the loss for one micro-batch, forward and backward."""
    model, gpu = workload.model, workload.cluster.gpu
    cut = layout.tp if traits.vocab_parallel else np.ones_like(layout.tp)
    width = model.vocab_size / cut
    shape = 1.0 + constants.half_size * (1.0 / layout.tokens + 1.0 / width + 1.0 / model.hidden_size)
    matmul = 3.0 * layout.tokens * head_flops(model) / cut * shape
    loss = 20.0 * layout.tokens * width / (gpu.memory_bytes_per_s * constants.memory_efficiency)
    return matmul / (peak_flops_per_s(workload, table) * constants.matmul_efficiency) + loss


def no_sooner_than(kernels: Column, host: Column) -> Column:
    """The later of kernels and the host that launches them, rounded at the corner (4-norm): near it both hold each other up."""
    return np.asarray((kernels**4 + host**4) ** 0.25)
