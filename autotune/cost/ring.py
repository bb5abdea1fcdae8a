"""What a ring costs attention beside its traffic: shorter kernels, and the sums of their results.

    n ranks of context parallelism   s length of the sequence   q, k widths of queries and of keys on a rank

The sequence is cut into 2n chunks, of which a rank holds the r-th from either end, so that causal attention costs every rank the same. Its queries
meet the keys of one rank at a time: n kernels over chunks of s / 2n instead of one over s.

    kernels   over l keys one reaches 1 / (1 + L/l) of the speed of a long one, L = 150: FlashAttention-3's forward pass on an H100 reaches 497, 565, 625,
              638, 646 and 648 TFLOP/s over 512 to 16,384 keys (Shah et al., arXiv 2407.08608, figure 5, head width 128, not causal)
    sums      what each of the n - 1 later kernels finds is added to sums in fp32, 2 + 4 + 4 bytes: the output in the forward pass, the gradients of
              queries, keys and values in the backward pass; on average for three quarters of them, as causal kernels skip half of the queries or of the keys

Check: a ring of eight over 65,536 tokens reaches 90.2% of one kernel's speed on H800 and 89.8% on A100, forward and backward (zhuzilin/ring-flash-attention,
README); these two costs make 93 to 94% of it. Neglected: launches of the kernels. A cut into n contiguous chunks, as some
trainers have it, makes the last rank's attention (2n - 1) / n times as long as the mean: no trainer here does so.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.compute import element_bytes
from autotune.cost.flops import attended_len
from autotune.cost.layout import Column, Layout
from autotune.spec import ConfigTable, Workload

HALF_SPEED_KEYS = 150.0
"""keys over which a kernel of attention reaches half of its speed"""
ADDED = 0.75
"""share of a rank's queries or keys to which one later kernel adds"""


def ring_scores_s(
    workload: Workload, table: ConfigTable, layout: Layout, constants: Calibration, scores: Column, again: Column
) -> Column:
    """Seconds of one layer's attention for one micro-batch under a ring, from those of the same work in one kernel.

    `scores`: forward and backward; `again`: share of the forward pass that is computed again.
    """
    rings = (table.cp > 1) & table.is_word("cp_style", "ring")
    if not rings.any():
        return scores
    gpu, model = workload.cluster.gpu, workload.model
    slower = np.ones_like(layout.cp) if gpu.is_cpu else shorter_kernels(attended_len(workload), layout.cp)
    q, kv = model.num_attention_heads * model.head_dim, 2.0 * model.num_kv_heads * model.head_dim
    added = (layout.cp - 1.0) * ADDED * layout.tokens * ((2.0 + again) * q + kv) / layout.tp
    sums = added * (element_bytes(table) + 8.0) / (gpu.memory_bytes_per_s * constants.memory_efficiency)
    return np.where(rings, scores * slower + sums, scores)


def shorter_kernels(length: float, ranks: Column) -> Column:
    """How much longer kernels over chunks of length / (2 * ranks) take than one over the whole length."""
    return np.asarray((1.0 + HALF_SPEED_KEYS * 2.0 * ranks / length) / (1.0 + HALF_SPEED_KEYS / length))
