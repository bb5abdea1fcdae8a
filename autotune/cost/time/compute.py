"""Kernel time of one micro-batch on one rank: matmuls, attention, memory-bound work, and the host
time to launch them.

A matmul of m x n x k takes

    2 m n k / (peak * efficiency) * (1 + half_size * (1/m + 1/n + 1/k))

The second factor adds the time to read and write the matrices, as in the roofline model with both
terms added (Williams et al., CACM 2009). On Ampere, tensor cores are fully used only if rows are
multiples of 128 bytes (NVIDIA, Matrix Multiplication Background, "Tensor Core requirements";
Anthony et al., arXiv 2401.14489, section III); other matrices take `UNALIGNED` times as long, from
runs with 14,400 / 8 = 1,800 columns compared with 13,824 / 8 = 1,728 = 27 * 64 (BigScience,
chronicles-prequel.md). Neglected: tile and wave quantization.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import (
    Column,
    Layout,
    attended_len,
    head_flops,
    layer_attention_flops,
    layer_matmuls,
)
from autotune.cost.time.attention import attention_reached
from autotune.cost.time.elementwise import has_wide_stream, moved_elements
from autotune.cost.time.experts import expert_moved_bytes, expert_rows, rows_per_expert
from autotune.cost.traits import Traits
from autotune.spec import PRECISIONS, ConfigTable, ModelSpec, Workload

_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 2.0,
    "mxfp8": 2.0,
    "nvfp4": 2.0,
}
"""bytes of one activation element; with matmuls in 8 or 4 bits, activations stay in bf16"""
_FALLBACK = {
    "tf32": "fp32",
    "fp16": "bf16",
    "bf16": "fp32",
    "fp8": "bf16",
    "mxfp8": "fp8",
    "nvfp4": "mxfp8",
}
NARROW = {"fp8": 1.0, "mxfp8": 0.93, "nvfp4": 0.72}
"""Achieved fraction of a narrow format's peak, relative to the fraction that fp8 achieves of its
peak (`fp8_factor`).

mxfp8 writes each operand along both axes with a scale for every 32 values; nvfp4 also uses random
rotations and stochastic rounding, and keeps some layers in bf16 (arXiv 2509.25149). From the same
recipes for Llama-3 70B in two formats (megatron_bridge_perf.csv): mxfp8 has 0.90 to 1.00 of the
speed of fp8; nvfp4 has 1.26 times the speed of mxfp8 on GB200 (twice the peak) and 1.50 times on
GB300 (three times the peak). These are two equations for nvfp4's fraction and the share of matmuls
in a step, 0.59.
"""


FP32 = 4.0
BACKWARD_SCORES = 2.5
"""time of FlashAttention's backward pass relative to its forward pass; it recomputes the scores
(Dao, arXiv 2307.08691)"""
HEAD_STEP = 32
"""head dimensions of FlashAttention's kernels are multiples of this"""
EAGER_SCORES = 2.0
"""bytes moved per stored score in 16 bits by separate operators, relative to one fused kernel: 24 /
12 (`score_moved_bytes`)"""
LINE_ELEMENTS = 64.0
"""16-bit elements of a cache line of 128 bytes"""
UNALIGNED = 1.4
"""time of a matmul whose rows are not aligned to cache lines, relative to an aligned one, on
Ampere"""
LOSS_CHUNKS = 8.0
"""number of chunks of the sequence in a chunked loss (torchtitan's `num_chunks`)"""


def peak_of(workload: Workload, precision: str) -> float:
    """Return the datasheet peak for a precision, FLOP/s; for a precision that the GPU lacks, that
    of the next wider one."""
    peaks = workload.cluster.gpu.peak_flops_per_s
    while precision not in peaks:
        if precision not in _FALLBACK:
            return float(max(peaks.values()))
        precision = _FALLBACK[precision]
    return float(peaks[precision])


def sixteen_bits_peak(workload: Workload) -> float:
    """Return the datasheet peak of the work that stays in 16 bits next to fp8 matmuls, FLOP/s:
    bf16, or fp16 on a GPU without bf16 (V100)."""
    peaks = workload.cluster.gpu.peak_flops_per_s
    return peak_of(workload, "fp16" if "fp16" in peaks and "bf16" not in peaks else "bf16")


def peak_flops_per_s(workload: Workload, table: ConfigTable) -> Column:
    """Return the datasheet peak of each row's matmuls, FLOP/s."""
    return np.array([peak_of(workload, p) for p in PRECISIONS])[table.precision]


def element_bytes(table: ConfigTable) -> Column:
    """Return the bytes of one activation element."""
    return np.array([_BYTES[p] for p in PRECISIONS])[table.precision]


def sixteen_bits_factor(table: ConfigTable, constants: Calibration) -> Column:
    """Return the factor on `matmul_efficiency`: `half_factor` for rows in 16 bits, else 1."""
    return np.where(element_bytes(table) < 4, constants.half_factor, 1.0)


def reached_factor(table: ConfigTable, constants: Calibration) -> Column:
    """Return the factor on `matmul_efficiency` in each row's precision."""
    narrow = (
        np.array([NARROW.get(p, 0.0) for p in PRECISIONS])[table.precision] * constants.fp8_factor
    )
    return np.where(narrow > 0, narrow, sixteen_bits_factor(table, constants))


def mfu_peak_flops_per_s(workload: Workload, table: ConfigTable, constants: Calibration) -> Column:
    """Return the peak for MFU, FLOP/s: the datasheet's, or the speed of large matmuls by the
    constants if that is higher. The stated peak of a CPU is only an order of magnitude, and a
    calibration may measure more."""
    reached = constants.matmul_efficiency * reached_factor(table, constants)
    return peak_flops_per_s(workload, table) * np.maximum(1.0, reached)


def is_narrow(table: ConfigTable) -> NDArray[np.bool_]:
    """Return whether rows have matmuls in 8 or 4 bits, with casts and scales, shape (N,)."""
    narrow = np.zeros(len(table), dtype=bool)
    for precision in NARROW:
        narrow |= table.is_word("precision", precision)
    return narrow


def layer_forward_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> tuple[Column, Column, Column]:
    """Return the time of one layer's forward pass for one micro-batch, s: (matmuls, attention
    scores and values, memory-bound work)."""
    model, gpu = workload.model, workload.cluster.gpu
    peak, half_peak = peak_flops_per_s(workload, table), sixteen_bits_peak(workload)
    sixteen_bits = sixteen_bits_factor(table, constants)
    seconds_per_flop = 1.0 / (peak * reached_factor(table, constants) * constants.matmul_efficiency)
    matmuls, cast = np.zeros_like(layout.tp), np.zeros_like(layout.tp)
    size, by_lines = element_bytes(table), loads_by_lines(workload)
    for weight in layer_matmuls(model):
        cut = layout.expert_tp if weight.expert else layout.tp
        n = weight.n / (cut if weight.cut == "n" else 1.0)
        k = weight.k / (cut if weight.cut == "k" else 1.0)
        m, rows, slower = layout.tokens, layout.tokens, 1.0
        if weight.expert:  # one matmul for each of the rank's experts
            m, rows = rows_per_expert(model, layout), expert_rows(model, layout)
            slower = constants.expert_imbalance / constants.grouped_efficiency
        flops = 2.0 * rows * n * k * weight.share * slower
        if by_lines:
            cut_side, whole_side = (n, weight.k) if weight.cut == "n" else (k, weight.n)
            off = (cut_side % LINE_ELEMENTS != 0) | (whole_side % LINE_ELEMENTS != 0)
            flops = flops * np.where(off & (size < FP32), UNALIGNED, 1.0)
        if np.any(constants.cast_bytes > 0):
            cast = cast + rows * weight.share * (n + k)
        matmuls = matmuls + flops * seconds_per_flop * (
            1.0 + constants.half_size * (1.0 / m + 1.0 / n + 1.0 / k)
        )
    scores = layout.tokens * layer_attention_flops(model, attended_len(workload)) / layout.tp
    half_precision = np.minimum(peak, half_peak) * sixteen_bits
    attention = (
        scores
        * padded_head(model)
        / (half_precision * attention_reached(workload, table, constants, traits))
    )
    # matmuls over the whole score matrix, and kernels that read and write it
    if keeps_scores(workload, traits):
        stored = layout.tokens * workload.seq_len * model.num_attention_heads / layout.tp
        read_and_written = stored * score_moved_bytes(table, constants, traits)
        plain = 2.0 * scores / (half_precision * constants.matmul_efficiency)
        attention = plain + read_and_written / (
            gpu.memory_bytes_per_s * constants.memory_efficiency
        )
    is_wide = has_wide_stream(workload, table, traits)
    moved = (
        layout.tokens * size * moved_elements(model, table, layout, traits, is_wide=is_wide).total
    )
    if np.any(constants.cast_bytes > 0):
        moved = moved + np.where(is_narrow(table), cast * constants.cast_bytes / 3.0, 0.0)
    if model.num_experts:
        moved = moved + expert_moved_bytes(model, table, layout, size)
    return matmuls, attention, moved / (gpu.memory_bytes_per_s * constants.memory_efficiency)


def head_step_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Return the time of the output projection and the loss for one micro-batch, forward and
    backward, s."""
    model = workload.model
    cut = layout.tp if traits.vocab_parallel else np.ones_like(layout.tp)
    width = model.vocab_size / cut
    chunked = is_loss_chunked(table, traits)
    tokens = layout.tokens / np.where(chunked, LOSS_CHUNKS, 1.0)
    shape = 1.0 + constants.half_size * (1.0 / tokens + 1.0 / width + 1.0 / model.hidden_size)
    again = np.where(chunked & traits.chunks_again, 1.0, 0.0)
    # a frozen projection only passes the gradient on
    passes = (3.0 if workload.peft is None else 2.0) + again
    matmul = passes * layout.tokens * head_flops(model) / cut * shape
    peak = np.minimum(
        peak_flops_per_s(workload, table), sixteen_bits_peak(workload)
    )  # with fp8 the head stays in 16 bits
    rate = peak * sixteen_bits_factor(table, constants) * constants.matmul_efficiency
    return matmul / rate + loss_s(workload, table, layout, constants, traits)


def is_loss_chunked(table: ConfigTable, traits: Traits) -> NDArray[np.bool_]:
    """Return whether rows compute output projection and loss in chunks of the sequence, shape
    (N,)."""
    return table.is_word("loss", "chunked") | (
        table.is_word("loss", "own") & (traits.loss == "chunked")
    )


def loss_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> Column:
    """Return the time of the loss without the output projection, which is memory-bound, s."""
    model, gpu = workload.model, workload.cluster.gpu
    logits = (
        layout.tokens
        * model.vocab_size
        / (layout.tp if traits.vocab_parallel else np.ones_like(layout.tp))
    )
    moved = loss_moved_bytes(table, traits) * (1.0 + model.mtp_layers) * logits
    return np.asarray(moved / (gpu.memory_bytes_per_s * constants.memory_efficiency))


def loss_moved_bytes(table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes per logit read and written by the loss, forward and backward, by kind of
    loss (see `memory/loss.py`). b: bytes of an activation element.

    full, chunked           cast to fp32 (b + 4), log-softmax (8); gradient of nll_loss (4), of log-softmax (12), cast back (4 + b)
    parallel, copied        kernel by kernel: cast (b + 4), maximum (4), subtraction (8), exponential (8), sum (4), division (8); product (8), cast (4 + b)
    kernel                  logits read twice and their gradient written: 3 b (flash-attn)
    fused                   logits read twice, gradient written over them and scaled: 4 b (Hsu et al., Liger Kernel, arXiv 2410.10989, section 3.2)
    metrics                 another cast and log-softmax for each (`Traits.loss_metrics`): b + 12
    """
    size = element_bytes(table)
    whole, by_kernel = 2.0 * size + 8.0 * FP32, 2.0 * size + 12.0 * FP32
    kinds = {
        "full": whole, "chunked": whole, "parallel": by_kernel, "copied": by_kernel,
        "kernel": 3.0 * size, "fused": 4.0 * size,
    }  # fmt: skip
    moved = kinds[traits.loss]
    for kind in ("full", "chunked", "fused"):
        moved = np.where(table.is_word("loss", kind), kinds[kind], moved)
    return np.asarray(moved + traits.loss_metrics * (size + 3.0 * FP32))


def padded_head(model: ModelSpec) -> float:
    """Return the head dimension in attention's kernels relative to the model's: it is rounded up to
    a multiple of 32 (flash-attn's `HEADDIM_SWITCH`)."""
    return math.ceil(model.head_dim / HEAD_STEP) * HEAD_STEP / model.head_dim


def keeps_scores(workload: Workload, traits: Traits) -> bool:
    """Return whether attention stores the score matrix in memory; FlashAttention does not."""
    return workload.unfused_attention or (
        traits.flash_needs_bf16 and "bf16" not in workload.cluster.gpu.peak_flops_per_s
    )


def score_moved_bytes(table: ConfigTable, constants: Calibration, traits: Traits) -> Column:
    """Return the bytes read and written per stored score in one pass. Without fused kernels or
    compilation, each operator is a separate kernel, and the softmax is in fp32 (attention of
    transformers and nanoGPT): written 2, scaled 4, masked 4, softmax 2 + 4, cast back 4 + 2, read
    2."""
    size = element_bytes(table)
    eager = ~np.asarray(table.compile, dtype=bool) & (not traits.fused) & (size < FP32)
    return np.asarray(constants.score_bytes * size / 2.0 * np.where(eager, EAGER_SCORES, 1.0))


def loads_by_lines(workload: Workload) -> bool:
    """Return whether matmuls load rows by cache lines: on NVIDIA's Ampere, the generation with tf32
    but without fp8. Hopper and later copy whole tiles, in units of 16 bytes."""
    peaks = workload.cluster.gpu.peak_flops_per_s
    return "tf32" in peaks and "fp8" not in peaks


def layer_host_s(table: ConfigTable, layout: Layout, constants: Calibration) -> Column:
    """Return the host time to launch one layer's forward and backward pass for one micro-batch,
    without the additional time for experts, s."""
    both = (layout.tp > 1) & (layout.pp > layout.stages_per_domain)
    waits = layout.tp * (1.0 + np.log2(layout.tp_group.domains))
    kernel_by_kernel = constants.layer_host_s + np.where(
        both, constants.pipelined_tensor_host_s * waits, 0.0
    )
    by_layer = np.full_like(layout.tp, 2.0 * GRAPH_LAUNCH_S)
    graphs = table.is_word("cuda_graph", "layers")
    return np.where(
        table.is_word("cuda_graph", "step"), 0.0, np.where(graphs, by_layer, kernel_by_kernel)
    )


def smooth_maximum(kernels: Column, host: Column) -> Column:
    """Return a smooth maximum of the time of kernels and the host time to launch them: if both are
    similar, each delays the other."""
    return np.asarray((kernels**CORNER + host**CORNER) ** (1.0 / CORNER))


GRAPH_LAUNCH_S = 10e-6
"""host time to launch a CUDA graph of a layer's forward or backward pass, including copies of
inputs, s (NVIDIA, "Constant time launch for straight-line CUDA graphs", 2024: 2.5 us and 1 ns per
node for the launch itself)"""
CORNER = 4.0
"""exponent p of the p-norm that is used as a smooth maximum of two concurrent times (infinity: the
maximum)"""


def exposed(traffic: Column, cover: Column, overlap: float | Column) -> Column:
    """Return the part of `traffic` that is not hidden, s, if a fraction `overlap` of it can run
    concurrently with kernels that take `cover` seconds."""
    return (1.0 - overlap) * traffic + overlap * (smooth_maximum(traffic, cover) - cover)
