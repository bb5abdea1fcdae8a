"""Speed of attention's kernels by the length of the sequence: fraction of the peak in 16 bits, forward and backward together.

    l  tokens that attend to one another   c  `Calibration.attention_efficiency`, reached at R = 8,192 tokens   a  `Calibration.attention_limit`, of long sequences

    e(l) = a / (1 + K / l)                      l >= R, with K such that e(R) = c
    e(l) = c (1 + L / R) / (1 + L / l)          l < R, where kernels alone grow slower: L = 400

L is that of causal kernels over heads of 128 on an H100 (Shah et al., arXiv 2407.08608, figures 5 and 6, TFLOP/s forward over 512 to 16,384 tokens): FlashAttention-2 191, 260, 298, 319,
333 and 335, FlashAttention-3 292, 423, 521, 579, 602 and 616. A program loses more than its kernel does (copies, rotations, transposes), but in proportion to its tokens, while
scores grow with their square: so K is what is left of c at R, and a is the kernel's own.

    limits of long sequences, forward and backward together, as fractions of the peak in 16 bits
    Ampere and older       0.62    FlashAttention-2 on A100: at most 0.61 forward and backward (Dao, arXiv 2307.08691, figures 4 to 7); a 7B over 0.5 and 0.7 million tokens within 5% (published_unseen_2.csv)
    Hopper, flash2         0.34    370 forward and 322 backward of 989, together 334 (arXiv 2407.08608, figures 5 and 6); over 0.5 and 3.7 million tokens 0.35 (arXiv 2506.13996)
    Hopper, cudnn          0.60    FlashAttention-3 and cuDNN: 648 forward, 561 backward (arXiv 2407.08608, figures 5 and 6)
    Blackwell              0.56    FlashAttention-4: 1,534 forward, 1,247 to 1,360 backward of 2,250 (Dao-AILab/flash-attention pull request 2280) alone; 0.55 in training (published_open.csv)
    Blackwell, cudnn       0.40    Megatron-LM on a machine that holds its clock down (SimuMax, 32,768 and 131,072 tokens)
    AMD                    0.36    assumed: its kernels reach about half of what its matrix products do

FlashAttention in Triton of 2023 (llm-foundry: 512 to 65,536 tokens) keeps one speed, and so do CPUs and GPUs without bf16, where none of these kernels run. The kernel is the program's (`Traits.attention_kernel`). Where its user chooses and does not say (`Workload.attention_kernel`),
Hopper has the geometric mean of both. Heads narrower than 128 reach `NARROW_HEAD` of the limit: 299 of
335 and 473 of 616 TFLOP/s with 64. No limit is above `FASTEST`. Kernels of a ring see a rank's tokens at a time and do not grow beyond R. Neglected: steps between lengths, dropout.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.layout import attended_len
from autotune.spec import ConfigTable, GpuSpec, Workload

if TYPE_CHECKING:
    from autotune.cost.calibration import Calibration
    from autotune.cost.layout import Column
    from autotune.cost.traits import Traits

REFERENCE = 8192.0
"""R"""
HALF_SPEED = 400.0
"""L"""
LIMITS = {
    ("ampere", ""): 0.62,
    ("hopper", "flash2"): 0.34,
    ("hopper", "flash3"): 0.60,
    ("hopper", "cudnn"): 0.60,
    ("hopper", ""): math.sqrt(0.34 * 0.60),
    ("blackwell", ""): 0.56,
    ("blackwell", "cudnn"): 0.40,
    ("amd", ""): 0.36,
}
"""a by the GPU's generation and the program's kernel"""
FASTEST = {"ampere": 0.73, "hopper": 0.75, "blackwell": 0.72, "amd": 0.50}
"""the fastest attention kernel ever measured: FlashAttention-2 230 of 312 TFLOP/s on A100 (arXiv 2307.08691, section 4.1), FlashAttention-3 740 of 989 on H100 (arXiv 2407.08608,
section 4.1), FlashAttention-4 and cuDNN 1,613 of 2,250 on B200 (arXiv 2603.05451)"""
HOPPER_FLOPS_PER_S, BLACKWELL_FLOPS_PER_S = 700e12, 1500e12
"""peaks in bf16 above which a GPU with 8-bit formats is a Hopper, and one with 4-bit formats a Blackwell of a data center"""
NARROW_HEAD, WIDE = 0.83, 128
"""share of the limit that heads narrower than that reach"""


def generation(gpu: GpuSpec) -> str:
    """The generation whose kernels a GPU runs: of NVIDIA's by its formats and its peak, which a GPU held back for export lacks."""
    peaks = gpu.peak_flops_per_s
    if gpu.name.startswith(("mi", "rx-")):
        return "amd"
    if "nvfp4" in peaks and peaks.get("bf16", 0.0) > BLACKWELL_FLOPS_PER_S:
        return "blackwell"
    return "hopper" if "fp8" in peaks and peaks.get("bf16", 0.0) > HOPPER_FLOPS_PER_S else "ampere"


def kernel_limit(gpu: GpuSpec, traits: Traits) -> float:
    """a of a GPU and a program's kernel."""
    found = generation(gpu)
    return LIMITS.get((found, traits.attention_kernel), LIMITS[found, ""])


def attention_reached(workload: Workload, table: ConfigTable, constants: Calibration, traits: Traits) -> Column:
    """e of every row, with the speed of the program's kernel. The kernels of a ring see the tokens of one rank at a time."""
    gpu, at_reference = workload.cluster.gpu, constants.attention_efficiency
    rings = (table.cp > 1) & table.is_word("cp_style", "ring")
    whole = attended_len(workload)
    length = np.where(rings, np.minimum(whole / table.cp, REFERENCE), whole)
    if gpu.is_cpu or traits.attention_kernel == "triton" or "bf16" not in gpu.peak_flops_per_s:
        return np.full_like(length, at_reference * traits.attention_speed)
    limit = constants.attention_limit
    if not np.any(limit):
        limit = kernel_limit(gpu, traits) * constants.program_level * gpu.clock
    limit = limit * (NARROW_HEAD if workload.model.head_dim < WIDE else 1.0)
    own = HALF_SPEED / REFERENCE
    growth = np.where(length > REFERENCE, np.maximum(limit / at_reference - 1.0, own), own)
    reached = at_reference * (1.0 + growth) / (1.0 + growth * REFERENCE / length)
    most = np.full_like(reached, np.maximum(FASTEST[generation(gpu)] * gpu.clock, at_reference))
    if (generation(gpu), traits.attention_kernel) == (
        "hopper",
        "flash2",
    ):  # slower than what most programs there were fitted with
        most = limit / (1.0 + HALF_SPEED / length)
    return np.minimum(reached, most) * traits.attention_speed
