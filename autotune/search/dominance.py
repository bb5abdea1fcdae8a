"""Memory dominance: which configs need at least as much memory as one that ran out of memory.

Three rules, each with all other knobs equal, were checked on 3257 published H100 configs (1B to 80B
parameters, 8 to 512 GPUs, the sweeps behind the Ultra-Scale Playbook). They were wrong on few
pairs, so an out-of-memory failure rules candidates out permanently:

    larger micro-batch         2078 pairs, 0.6% wrong        the accumulation steps follow from the global batch
    lower ZeRO stage            179 pairs, 0.0% wrong
    same tp * pp, lower tp     1321 pairs, 1.0% wrong        pipeline stages hold 1F1B's micro-batches in flight, tensor shards do not

Two more hold by construction: less recomputation, and no sequence parallelism instead of sequence
parallelism. Similar rules about speed were wrong on up to 67% of pairs, so there are none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ParallelConfig

ORDERED = (
    "tp",
    "pp",
    "micro_batch_size",
    "accumulation_steps",
    "zero_stage",
    "recompute",
    "sequence_parallel",
)
"""knobs that the rules compare; all other knobs must be equal"""


def needs_as_much_memory(table: ConfigTable, failed: ParallelConfig) -> NDArray[np.bool_]:
    """Mask of the rows that need at least as much memory as `failed`, including itself, shape
    (N,)."""
    mask = table.tp * table.pp == failed.tp * failed.pp
    for name, knob in table.knobs.items():
        if name not in ORDERED:
            mask &= table.column(name) == knob.encode(failed.value(name))
    mask &= table.tp <= failed.tp
    mask &= table.micro_batch_size >= failed.micro_batch_size
    # a larger global batch at the same micro-batch needs no less memory either
    mask &= table.global_batch_size >= failed.global_batch_size
    mask &= table.zero_stage <= failed.zero_stage
    mask &= table.recompute <= table.knobs["recompute"].encode(failed.recompute)
    mask &= table.sequence_parallel.astype(np.int8) <= int(failed.sequence_parallel)
    return np.asarray(mask)
