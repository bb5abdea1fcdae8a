"""Speed of attention's kernels by the length of the sequence: fraction of the peak in 16 bits,
forward and backward together.

    l  tokens that attend to one another   c  `Calibration.attention_efficiency`, reached at R = 8,192 tokens   a  `Calibration.attention_limit`, of long sequences

    e(l) = a / (1 + K / l)                      l >= R, with K such that e(R) = c
    e(l) = c (1 + L / R) / (1 + L / l)          l < R, where kernels alone grow slower: L = 400

L is that of causal kernels over heads of 128 on an H100 (Shah et al., arXiv 2407.08608, figures 5
and 6, TFLOP/s forward over 512 to 16,384 tokens): FlashAttention-2 191, 260, 298, 319, 333 and 335,
FlashAttention-3 292, 423, 521, 579, 602 and 616. A program loses more than its kernel does (copies,
rotations, transposes), but in proportion to its tokens, while scores grow with their square: so K
is what is left of c at R, and a is the kernel's own (`attention_kernels.py`).

FlashAttention in Triton of 2023 (llm-foundry: 512 to 65,536 tokens) keeps one speed, and so do CPUs
and GPUs without bf16, where none of these kernels run. The kernel is the program's
(`Traits.attention_kernel`). Where its user chooses and does not say (`Workload.attention_kernel`),
Hopper has the geometric mean of both. Heads narrower than 128 reach `NARROW_HEAD` of the limit: 299
of 335 and 473 of 616 TFLOP/s with 64. No limit is above `FASTEST`. Kernels of a ring see a rank's
tokens at a time and do not grow beyond R. Neglected: steps between lengths, dropout.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, attended_len
from autotune.cost.time.attention_kernels import FASTEST, generation, kernel_limit
from autotune.cost.traits import Traits
from autotune.spec import ConfigTable, Workload

REFERENCE = 8192.0
"""R"""
HALF_SPEED = 400.0
"""L"""
NARROW_HEAD, WIDE = 0.83, 128
"""share of the limit that heads narrower than that reach"""


def attention_reached(
    workload: Workload, table: ConfigTable, constants: Calibration, traits: Traits
) -> Column:
    """Return e, the achieved fraction of the peak, of every row, with the speed of the program's
    kernel. Kernels in a ring process the tokens of one rank at a time."""
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
    # slower than what most programs there were fitted with
    if (generation(gpu), traits.attention_kernel) == ("hopper", "flash2"):
        most = limit / (1.0 + HALF_SPEED / length)
    return np.minimum(reached, most) * traits.attention_speed
