"""What fine-tuning trains: all weights, or low-rank adapters beside frozen ones (Hu et al., arXiv 2106.09685).

An adapter of rank r beside a matrix of (k, n) is one of (k, r) and one of (r, n). The backward pass of a frozen matrix computes the gradient of its input and
none of its weights. QLoRA keeps the frozen matrices of the layers in 4 bits with a scale for every 64 weights, `FOUR_BITS` bytes each with double quantization
(Dettmers et al., arXiv 2305.14314, section 3), and writes them in 16 bits before each use. Embedding and output projection stay in 16 bits: libraries replace the
linear modules of the layers, and none of them the head (bitsandbytes in transformers: `llm_int8_skip_modules`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.compute import sixteen_bits_peak
from autotune.cost.flops import Matmul, layer_matmuls
from autotune.cost.layout import Column, Layout
from autotune.spec import ModelSpec, Peft, Workload

FOUR_BITS = 0.516
"""bytes of a weight in 4 bits, its share of the scales included"""
FROZEN_EDGE_BYTES = 2.0
"""bytes of a frozen weight of the embedding or the output projection"""
UNPACKED_BYTES = FOUR_BITS + 2.0
"""bytes that are read and written to make a weight of 16 bits out of one of 4 bits"""


def frozen_bytes(workload: Workload) -> float:
    """Bytes in which a frozen weight of a layer is kept and gathered."""
    return FOUR_BITS if workload.peft is not None and workload.peft.method == "qlora" else 2.0


def adapter_weights(model: ModelSpec, peft: Peft, layout: Layout) -> tuple[Column, Column]:
    """Weights of one layer's adapters on a rank: (beside dense matrices, beside those of its experts)."""
    dense = experts = np.zeros_like(layout.tp)
    for matrix, inputs, outputs in _adapted(model, peft, layout):
        weights = peft.rank * (inputs + outputs) * matrix.share
        if matrix.expert:
            experts = experts + weights * model.num_experts / layout.ep
        else:
            dense = dense + weights
    return dense, experts


def adapters_forward_s(workload: Workload, layout: Layout, constants: Calibration) -> Column:
    """Seconds of one layer's adapters in the forward pass of one micro-batch; zero where all weights are trained."""
    if workload.peft is None:
        return np.zeros_like(layout.tp)
    rank, seconds = float(workload.peft.rank), np.zeros_like(layout.tp)
    per_flop = 1.0 / (sixteen_bits_peak(workload) * constants.matmul_efficiency)
    for matrix, inputs, outputs in _adapted(workload.model, workload.peft, layout):
        tokens = layout.tokens * matrix.share * (workload.model.experts_per_token if matrix.expert else 1.0)
        for width in (inputs, outputs):
            narrow = 1.0 + constants.half_size * (1.0 / layout.tokens + 1.0 / rank + 1.0 / width)
            seconds = seconds + 2.0 * tokens * width * rank * per_flop * narrow
    return seconds


def unpacking_s(workload: Workload, constants: Calibration, weights: Column) -> Column:
    """Seconds to write frozen weights of 4 bits in 16 bits, once; zero where they are kept in 16 bits."""
    if workload.peft is None or workload.peft.method != "qlora":
        return np.zeros_like(weights)
    rate = workload.cluster.gpu.memory_bytes_per_s * constants.memory_efficiency
    return weights * UNPACKED_BYTES / rate


def _adapted(model: ModelSpec, peft: Peft, layout: Layout) -> Iterator[tuple[Matmul, Column, Column]]:
    """The matrices of a layer that have adapters, with their input and output width on a rank."""
    for matrix in layer_matmuls(model):
        if peft.targets == "all" or matrix.part in ("inputs", "output"):
            cut_inputs, cut_outputs = (layout.tp if matrix.cut == side else np.ones_like(layout.tp) for side in "kn")
            yield matrix, matrix.k / cut_inputs, matrix.n / cut_outputs
