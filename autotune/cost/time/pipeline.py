"""Pipeline schedules in closed form: how long a rank waits, and how many micro-batches it holds.

p ranks   v stages per rank   m micro-batches   t seconds of one micro-batch (forward and backward) on one rank

gpipe, 1f1b               m*t on the slowest rank, plus the time of one micro-batch on all others (Narayanan et al., arXiv 2104.04473, section 2.2)
interleaved_1f1b          the second term is v times shorter (same, section 2.2)
interleaved_zero_bubble   the weight-gradient part of the backward pass fills most of it (Qi et al., arXiv 2401.10241, section 2)
"""

from __future__ import annotations

import numpy as np

from autotune.cost.layout import Column, Layout
from autotune.spec import ConfigTable

WEIGHT_GRADIENT = 1.0 / 3.0
"""share of a micro-batch's time in its weight gradients: forward pass, input gradients and weight
gradients are matmuls of the same size"""


def bubble_time_s(table: ConfigTable, layout: Layout, others: Column) -> Column:
    """Return the seconds that the slowest rank waits; `others`: time of one micro-batch on all
    other ranks together.

    Agrees with the schedules of torch.distributed.pipelining when m is a multiple of p. Otherwise
    interleaved schedules wait longer, which is neglected.
    """
    zero_bubble = table.is_word("pp_schedule", "interleaved_zero_bubble")
    shorter = np.where(zero_bubble, WEIGHT_GRADIENT, 1.0)
    return np.where(layout.pp > 1, others / layout.virtual * shorter, 0.0)


def in_flight(table: ConfigTable, layout: Layout, rank: Column) -> Column:
    """Return the greatest number of micro-batches whose activations `rank` holds; a fraction stands
    for a micro-batch on some of its stages.

    gpipe: all m. 1f1b: p - rank. Interleaved: the warm-up holds (v-1)*p + 2*(p-1-rank) + 1 stage
    inputs of 1/v of a rank each. Zero bubble: p, because activations are kept until their weight
    gradients are computed (the schedules of torch.distributed.pipelining).
    """
    m, p, v = layout.accumulation, layout.pp, layout.virtual
    interleaved = table.is_word("pp_schedule", "interleaved_1f1b") & (v > 1)
    chunks = np.minimum(m * v, (v - 1.0) * p + 2.0 * (p - 1.0 - rank) + 1.0)
    held = np.where(interleaved, chunks / v, np.minimum(m, p - rank))
    held = np.where(table.is_word("pp_schedule", "interleaved_zero_bubble"), np.minimum(m, p), held)
    held = np.where(table.is_word("pp_schedule", "gpipe"), m, held)
    return np.where(p > 1, held, 1.0)
