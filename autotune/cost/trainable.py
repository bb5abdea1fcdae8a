"""Fine-tuning: all weights are trained, or only low-rank adapters of frozen ones (Hu et al., arXiv
2106.09685).

An adapter of rank r beside a matrix of (k, n) is one of (k, r) and one of (r, n). The backward pass
of a frozen matrix computes the gradient of its input and none of its weights. QLoRA keeps the
frozen matrices of the layers in 4 bits with a scale for every 64 weights, `FOUR_BITS` bytes each
with double quantization (Dettmers et al., arXiv 2305.14314, section 3), and writes them in 16 bits
before each use. Embedding and output projection stay in 16 bits: libraries replace the linear
modules of the layers, and none of them the head (bitsandbytes in transformers:
`llm_int8_skip_modules`).

Beside its two narrow products an adapter reads and writes, in elements of the compute precision per
token, of the input (k) and of the output (n) of its matrix:

                                                  forward                   backward
    kernel by kernel (torchtune, NeMo)            5 n                       3 k + 2 n        scaling, sum; sum of both inputs' gradients
    compiled                                      3 n                       3 k + 2 n        one kernel after the products
    PEFT, whose adapters are in fp32              10.5 k + 5 n              13.5 k + 2 n     input cast to fp32, dropped out there, and cast back by autocast
    PEFT beside 4 bits                            7.5 k + 11 n              10.5 k + 5 n     input in fp32; output copied, and summed in fp32

`prepare_model_for_kbit_training` of PEFT casts embeddings, norms and the output projection to fp32,
and so all that flows between the layers; bitsandbytes casts the input of every matrix to 16 bits
and its output back: 3 k + 3 n in each direction. (peft: `tuners/lora/layer.py` and `bnb.py`,
Linear.forward; `utils/other.py`; bitsandbytes: `nn/modules.py`, Linear4bit.) Scripts for PEFT set a
dropout, the recipes of the others none; taken as given.

What a layer keeps for the backward pass follows from the same code (checked with live tensors of
transformers 5.24 and PEFT 0.21, `tests/third_party/peft_activations.py`). A frozen matrix does not
keep its input. Each of PEFT's adapters keeps its own input after the dropout in 16 bits and the
dropout's mask, 3 k bytes per token. Adapters of other libraries share the input that a trained
matrix would keep.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Layout, Matmul, layer_matmuls
from autotune.cost.time.compute import FP32, element_bytes, sixteen_bits_peak
from autotune.cost.time.elementwise import has_library, has_wide_stream
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, ModelSpec, Peft, Workload

FOUR_BITS = 0.516
"""bytes of a 4-bit weight, including its share of the scales"""
MASK_BYTES = 1.0
"""bytes per element of a dropout's mask"""
EAGER = np.array([[0.0, 5.0], [3.0, 2.0]])
"""elements per token that an adapter reads and writes, in units of its matrix's input and output:
forward, backward"""
COMPILED = np.array([[0.0, 3.0], [3.0, 2.0]])
PEFT = np.array([[10.5, 5.0], [13.5, 2.0]])
PEFT_4_BITS = np.array([[7.5, 11.0], [10.5, 5.0]])
CAST = 3.0
"""elements of 16 bits that a cast between 16 and 32 bits reads and writes"""


def frozen_bytes(workload: Workload) -> float:
    """Return the bytes per frozen weight of a layer."""
    if workload.peft is not None and workload.peft.method == "qlora":
        return FOUR_BITS
    return FP32 if has_frozen_fp32(workload) else 2.0


def has_frozen_fp32(workload: Workload) -> bool:
    """Return whether frozen weights are kept in fp32. Autocast does not cache casts of untrained
    weights, but autograd keeps the operands of each product until its backward pass."""
    peft = workload.peft
    return peft is not None and peft.method == "lora" and peft.frozen_fp32


def frozen_edge_bytes(workload: Workload, table: ConfigTable, traits: Traits) -> Column:
    """Return the bytes per frozen weight of the embedding and the output projection: in 16 bits, or
    in fp32 with the projection's 16-bit copy for autocast."""
    copied = 2.0 if workload.model.tied_embeddings else 1.0
    is_wide = has_wide_stream(workload, table, traits) | has_frozen_fp32(workload)
    return np.where(is_wide, FP32 + copied, 2.0)


def inputs_kept(workload: Workload, traits: Traits) -> tuple[float, float]:
    """Return the shares of inputs that matrices keep for the backward pass, where trained matrices
    keep all: (of the outputs of both norms, of the activation function's output)."""
    if workload.peft is None:
        return 1.0, 1.0
    if has_library(workload, traits):
        return 0.0, 0.0
    return (1.0, 1.0) if workload.peft.targets == "all" else (0.5, 0.0)


def casts_mlp_gradients(workload: Workload, traits: Traits) -> bool:
    """Return whether the MLP's gradients are in fp32 until they have passed a dropout: its matrices
    have PEFT's adapters."""
    peft = workload.peft
    return peft is not None and peft.targets == "all" and has_library(workload, traits)


def adapters_kept(workload: Workload, layout: Layout, size: Column, traits: Traits) -> Column:
    """Return the bytes per token that the adapters of one layer keep, averaged over the layers.
    `size`: bytes per element."""
    kept = np.zeros_like(layout.tp)
    if workload.peft is None or not has_library(workload, traits):
        return kept
    for matrix, inputs, outputs in _adapted(workload.model, workload.peft, layout):
        widths = _widths(workload.model, matrix, inputs, outputs, merged=False)
        kept = kept + (size + MASK_BYTES) * widths[:, 0]
    return kept


def adapter_weights(model: ModelSpec, peft: Peft, layout: Layout) -> tuple[Column, Column]:
    """Return the weights of one layer's adapters on a rank: (of dense matrices, of those of its
    experts)."""
    dense = experts = np.zeros_like(layout.tp)
    for matrix, inputs, outputs in _adapted(model, peft, layout):
        weights = peft.rank * (inputs + outputs) * matrix.share
        if matrix.expert:
            experts = experts + weights * model.num_experts / layout.ep
        else:
            dense = dense + weights
    return dense, experts


def adapters_forward_s(workload: Workload, layout: Layout, constants: Calibration) -> Column:
    """Return the seconds of one layer's adapters in the forward pass of one micro-batch; zero where
    all weights are trained."""
    if workload.peft is None:
        return np.zeros_like(layout.tp)
    rank, seconds = float(workload.peft.rank), np.zeros_like(layout.tp)
    per_flop = 1.0 / (sixteen_bits_peak(workload) * constants.matmul_efficiency)
    for matrix, inputs, outputs in _adapted(workload.model, workload.peft, layout):
        tokens = (
            layout.tokens
            * matrix.share
            * (workload.model.experts_per_token if matrix.expert else 1.0)
        )
        for width in (inputs, outputs):
            narrow = 1.0 + constants.half_size * (1.0 / layout.tokens + 1.0 / rank + 1.0 / width)
            seconds = seconds + 2.0 * tokens * width * rank * per_flop * narrow
    return seconds


def adapters_moved_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, traits: Traits
) -> tuple[Column, Column]:
    """Return the seconds of what one layer's adapters read and write beside their products, for one
    micro-batch: (forward, backward), for every row."""
    nothing = np.zeros_like(layout.tp)
    if workload.peft is None:
        return nothing, nothing
    size, model = element_bytes(table), workload.model
    halved = (size < FP32)[:, None, None]  # in fp32 nothing is cast
    is_wide = has_wide_stream(workload, table, traits)[:, None, None]
    casting = PEFT if has_library(workload, traits) else EAGER
    casting = np.where(is_wide, PEFT_4_BITS, casting)
    compiled = np.asarray(table.compile, dtype=bool)[:, None, None]
    beside = np.where(compiled, COMPILED, np.where(halved, casting, EAGER))
    moved = np.zeros((len(table), 2))
    for matrix, inputs, outputs in _adapted(model, workload.peft, layout):
        widths = _widths(model, matrix, inputs, outputs, merged=traits.fused)
        moved = moved + np.einsum("ipw,iw->ip", beside, widths)
    if is_wide.any():
        for matrix, inputs, outputs in _adapted(model, Peft(targets="all"), layout):
            cast = CAST * _widths(model, matrix, inputs, outputs, merged=False).sum(
                axis=1, keepdims=True
            )
            casts = is_wide[:, 0] & halved[:, 0] & ~compiled[:, 0]
            moved = moved + np.where(casts, cast, 0.0)
    rate = workload.cluster.gpu.memory_bytes_per_s * constants.memory_efficiency
    seconds = moved * (layout.tokens * size / rate)[:, None]
    return seconds[:, 0], seconds[:, 1]


def _widths(
    model: ModelSpec, matrix: Matmul, inputs: Column, outputs: Column, *, merged: bool
) -> Column:
    """Return the elements per token that go into the matrices of this name and those that come out,
    shape (N, 2). `merged`: queries, keys and values are one matrix, as in Megatron."""
    visits = matrix.share * (model.experts_per_token if matrix.expert else 1.0)
    times = 1.0 if merged else apart(model, matrix.part)
    return np.stack([visits * times * inputs, visits * outputs], axis=1)


def apart(model: ModelSpec, part: str) -> float:
    """Return the weight matrices as libraries hold them in one of the layer's: queries, keys and
    values apart, and the gate beside the projection up."""
    return {"inputs": 1.0 if model.is_latent else 3.0, "up": 2.0 if model.gated_mlp else 1.0}.get(
        part, 1.0
    )


def unpacking_s(workload: Workload, constants: Calibration, weights: Column) -> Column:
    """Return the seconds to write frozen weights of 4 or 32 bits in 16 bits, once; zero where they
    are kept in 16 bits."""
    kept = frozen_bytes(workload)
    if workload.peft is None or kept == 2.0:
        return np.zeros_like(weights)
    rate = workload.cluster.gpu.memory_bytes_per_s * constants.memory_efficiency
    return weights * (kept + 2.0) / rate


def _adapted(
    model: ModelSpec, peft: Peft, layout: Layout
) -> Iterator[tuple[Matmul, Column, Column]]:
    """Return the matrices of a layer that have adapters, with their input and output width on a
    rank."""
    for matrix in layer_matmuls(model):
        if peft.targets == "all" or matrix.part in ("inputs", "output"):
            cut_inputs, cut_outputs = (
                layout.tp if matrix.cut == side else np.ones_like(layout.tp) for side in "kn"
            )
            yield matrix, matrix.k / cut_inputs, matrix.n / cut_outputs
