"""Limits of attention kernels: the fraction of a GPU's peak in 16 bits that long sequences reach,
by the GPU's generation and the program's kernel.

limits of long sequences, forward and backward together, as fractions of the peak in 16 bits
Ampere and older       0.62    FlashAttention-2 on A100: at most 0.61 forward and backward (Dao, arXiv 2307.08691, figures 4 to 7); a 7B over 0.5 and 0.7 million tokens within 5% (published_unseen_2.csv)
Hopper, flash2         0.34    370 forward and 322 backward of 989, together 334 (arXiv 2407.08608, figures 5 and 6); over 0.5 and 3.7 million tokens 0.35 (arXiv 2506.13996)
Hopper, cudnn          0.60    FlashAttention-3 and cuDNN: 648 forward, 561 backward (arXiv 2407.08608, figures 5 and 6)
Blackwell              0.56    FlashAttention-4: 1,534 forward, 1,247 to 1,360 backward of 2,250 (Dao-AILab/flash-attention pull request 2280) alone; 0.55 in training (published_open.csv)
Blackwell, cudnn       0.40    Megatron-LM on a machine that holds its clock down (SimuMax, 32,768 and 131,072 tokens)
AMD                    0.36    assumed: its kernels reach about half of what its matrix products do
"""

from __future__ import annotations

import math

from autotune.cost.traits import Traits
from autotune.spec import GpuSpec

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
"""the fastest attention kernel ever measured: FlashAttention-2 230 of 312 TFLOP/s on A100 (arXiv
2307.08691, section 4.1), FlashAttention-3 740 of 989 on H100 (arXiv 2407.08608, section 4.1),
FlashAttention-4 and cuDNN 1,613 of 2,250 on B200 (arXiv 2603.05451)"""
HOPPER_FLOPS_PER_S, BLACKWELL_FLOPS_PER_S = 700e12, 1500e12
"""peaks in bf16 above which a GPU with 8-bit formats is a Hopper, and one with 4-bit formats a
Blackwell of a data center"""


def generation(gpu: GpuSpec) -> str:
    """Return the generation whose kernels a GPU runs: of NVIDIA's by its formats and its peak,
    which a GPU held back for export lacks."""
    peaks = gpu.peak_flops_per_s
    if gpu.name.startswith(("mi", "rx-")):
        return "amd"
    if "nvfp4" in peaks and peaks.get("bf16", 0.0) > BLACKWELL_FLOPS_PER_S:
        return "blackwell"
    return "hopper" if "fp8" in peaks and peaks.get("bf16", 0.0) > HOPPER_FLOPS_PER_S else "ampere"


def kernel_limit(gpu: GpuSpec, traits: Traits) -> float:
    """Return a, the limit of a program's kernel on a GPU, as a fraction of its peak."""
    found = generation(gpu)
    return LIMITS.get((found, traits.attention_kernel), LIMITS[found, ""])
