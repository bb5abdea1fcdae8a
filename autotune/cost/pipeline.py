"""Pipeline schedules in closed form: how often a stage waits, and how many micro-batches it holds.

    p ranks   v stages per rank   m micro-batches   t seconds of one micro-batch (forward and backward) on one rank

gpipe and 1f1b: m*t on the slowest rank plus one micro-batch's way through the others (Narayanan et al., arXiv 2104.04473, section 2.2);
interleaved: the way in and out is v times shorter (same, section 2.2); interleaved zero bubble: the weight-gradient half of the backward
pass fills most of it (Qi et al., arXiv 2401.10241, section 2).
"""

from __future__ import annotations

import numpy as np

from autotune.cost.layout import Column, Layout
from autotune.spec import ConfigTable

WEIGHT_GRADIENT = 1.0 / 3.0
"""share of a micro-batch's time in its weight gradients: forward, input gradients and weight gradients are matmuls of one size"""


def bubble_time_s(table: ConfigTable, layout: Layout, others: Column) -> Column:
    """Seconds that the slowest rank waits: `others` is the time of one micro-batch on all the other ranks together.

    Agrees with the tables of torch.distributed.pipelining when m is a multiple of p; with ragged rounds interleaved schedules wait longer.
    """
    zero_bubble = table.is_word("pp_schedule", "interleaved_zero_bubble")
    shorter = np.where(zero_bubble, WEIGHT_GRADIENT, 1.0)
    return np.where(layout.pp > 1, others / layout.virtual * shorter, 0.0)


def in_flight(table: ConfigTable, layout: Layout, rank: Column) -> Column:
    """Micro-batches whose activations rank `rank` holds at its fullest; fractions are micro-batches on some of its stages.

    gpipe: all m. 1f1b: p - rank. Interleaved: the warm-up holds (v-1)*p + 2*(p-1-rank) + 1 stage inputs of 1/v of a rank each. Zero bubble: p, as
    activations live until their weight gradients are done (the tables of torch.distributed.pipelining).
    """
    m, p, v = layout.accumulation, layout.pp, layout.virtual
    interleaved = table.is_word("pp_schedule", "interleaved_1f1b") & (v > 1)
    chunks = np.minimum(m * v, (v - 1.0) * p + 2.0 * (p - 1.0 - rank) + 1.0)
    held = np.where(interleaved, chunks / v, np.minimum(m, p - rank))
    held = np.where(table.is_word("pp_schedule", "interleaved_zero_bubble"), np.minimum(m, p), held)
    held = np.where(table.is_word("pp_schedule", "gpipe"), m, held)
    return np.where(p > 1, held, 1.0)
