"""Kernel time of one micro-batch on one rank: matmuls, attention, memory-bound work, and the host that launches them.

A matmul of m x n x k takes

    2 m n k / (peak * efficiency) * (1 + half_size * (1/m + 1/n + 1/k))

The second factor adds the time to read and write the matrices, as in the roofline model with both terms added (Williams et al., CACM 2009).
Neglected: tile quantization.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.flops import head_flops, layer_attention_flops, layer_matmuls
from autotune.cost.layout import Column, Layout
from autotune.cost.traits import Traits
from autotune.spec import PRECISIONS, ConfigTable, Workload

_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 2.0}
"""bytes of one activation element; with fp8 matmuls activations stay in bf16"""
_FALLBACK = {"tf32": "fp32", "fp16": "bf16", "bf16": "fp32", "fp8": "bf16"}


def peak_of(workload: Workload, precision: str) -> float:
    """Datasheet peak for a precision, FLOP/s; a precision that the GPU lacks runs at the peak of the next wider one."""
    peaks = workload.cluster.gpu.peak_flops_per_s
    while precision not in peaks:
        if precision not in _FALLBACK:
            return float(max(peaks.values()))
        precision = _FALLBACK[precision]
    return float(peaks[precision])


def sixteen_bits_peak(workload: Workload) -> float:
    """Datasheet peak of the work that stays in 16 bits next to fp8 matmuls, FLOP/s: bf16, or fp16 on a GPU without bf16 (V100)."""
    has = workload.cluster.gpu.peak_flops_per_s
    return peak_of(workload, "fp16" if "fp16" in has and "bf16" not in has else "bf16")


def peak_flops_per_s(workload: Workload, table: ConfigTable) -> Column:
    """Datasheet peak of each row's matmuls, FLOP/s."""
    return np.array([peak_of(workload, p) for p in PRECISIONS])[table.precision]


def element_bytes(table: ConfigTable) -> Column:
    """Bytes of one activation element."""
    return np.array([_BYTES[p] for p in PRECISIONS])[table.precision]


def sixteen_bits_factor(table: ConfigTable, constants: Calibration) -> Column:
    """Factor on `matmul_efficiency`: `half_factor` for rows in 16 bits, else 1."""
    return np.where(element_bytes(table) < 4, constants.half_factor, 1.0)


def layer_forward_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> tuple[Column, Column, Column]:
    """Seconds of one layer's forward pass for one micro-batch: (matmuls, attention's scores, memory-bound work)."""
    model, gpu = workload.model, workload.cluster.gpu
    peak, half_peak = peak_flops_per_s(workload, table), sixteen_bits_peak(workload)
    sixteen_bits = sixteen_bits_factor(table, constants)
    eight_bits = np.where(table.is_word("precision", "fp8"), constants.fp8_factor, sixteen_bits)
    seconds_per_flop = 1.0 / (peak * eight_bits * constants.matmul_efficiency)
    matmuls = np.zeros_like(layout.tp)
    for weight in layer_matmuls(model):
        n = weight.n / (layout.tp if weight.cut == "n" else 1.0)
        k = weight.k / (layout.tp if weight.cut == "k" else 1.0)
        m = layout.tokens
        visits = 1.0
        if weight.expert:
            visits = model.experts_per_token
            m = np.maximum(layout.tokens * visits * layout.ep / model.num_experts, 1.0)
        flops = 2.0 * layout.tokens * visits * n * k * weight.share
        matmuls = matmuls + flops * seconds_per_flop * (1.0 + constants.half_size * (1.0 / m + 1.0 / n + 1.0 / k))
    size = element_bytes(table)
    scores = layout.tokens * layer_attention_flops(model, workload.seq_len) / layout.tp
    half_precision = np.minimum(peak, half_peak) * sixteen_bits
    attention = scores / (half_precision * constants.attention_efficiency)
    kept = keeps_scores(table, constants, traits)
    if kept.any():  # matmuls over the whole score matrix, and kernels that read and write it
        elements = layout.tokens * workload.seq_len * model.num_attention_heads / layout.tp
        read_and_written = elements * constants.score_bytes * size / 2.0
        plain = 2.0 * scores / (half_precision * constants.matmul_efficiency)
        plain = plain + read_and_written / (gpu.memory_bytes_per_s * constants.memory_efficiency)
        attention = np.where(kept, plain, attention)
    cut = np.where(layout.sequence_parallel, layout.tp, 1.0)
    inner = (model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim * 2.0
    inner = inner + (3.0 if model.gated_mlp else 2.0) * model.active_ffn_width
    passes = np.where(table.compile, 0.6, 1.0)
    # tokens are sorted by expert and back again, each a read and a write
    outer = (10.0 + 4.0 * model.experts_per_token * model.expert_share) * model.hidden_size
    moved = layout.tokens * size * passes * (outer / cut + inner / layout.tp)
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
    peak = np.minimum(
        peak_flops_per_s(workload, table), sixteen_bits_peak(workload)
    )  # with fp8 the head stays in 16 bits
    return matmul / (peak * sixteen_bits_factor(table, constants) * constants.matmul_efficiency) + loss


def keeps_scores(table: ConfigTable, constants: Calibration, traits: Traits) -> NDArray[np.bool_]:
    """Rows whose attention stores the score matrix in memory; FlashAttention does not."""
    old = np.zeros(len(table), dtype=bool)
    if constants.score_bytes > 0:
        for precision in traits.scores_kept_in:
            old |= table.is_word("precision", precision)
    return old


def layer_host_s(layout: Layout, constants: Calibration) -> Column:
    """Seconds of the host for launching one layer's forward and backward pass for one micro-batch."""
    both = (layout.tp > 1) & (layout.pp > layout.stages_per_node)
    return constants.layer_host_s + np.where(both, constants.pipelined_tensor_host_s * layout.tp, 0.0)


def smooth_maximum(kernels: Column, host: Column) -> Column:
    """A smooth maximum of the time of kernels and of the host that launches them: where both are close, each delays the other."""
    return np.asarray((kernels**CORNER + host**CORNER) ** (1.0 / CORNER))


CORNER = 4.0
"""exponent p of the p-norm that serves as a smooth maximum of two concurrent times (infinity: the maximum)"""


def exposed(traffic: Column, cover: Column, overlap: float) -> Column:
    """Seconds of `traffic` that are not hidden, when a fraction `overlap` of it may run concurrently with `cover` seconds of kernels."""
    return (1.0 - overlap) * traffic + overlap * (smooth_maximum(traffic, cover) - cover)
