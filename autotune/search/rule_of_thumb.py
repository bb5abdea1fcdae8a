"""Rules of thumb: what an experienced person tries first, without a model of time.

The order of preference, from the guides of Megatron-LM and the Ultra-Scale Playbook: least model parallelism that fits, tensor parallel inside a
node before pipeline, no recomputation before selective before full, lower ZeRO stages before higher ones under a pipeline, then the largest
micro-batch. Which configs fit is asked of the memory estimate, and learnt from those that ran out of memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.searcher import Problem, Searcher
from autotune.spec import ConfigTable

SAFE = 0.5
"""probability of running out of memory up to which a config counts as one that fits"""


class RuleOfThumbSearcher(Searcher):
    """Least model parallelism that fits, first."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        fits = np.atleast_1d(np.asarray(problem.predict().oom_probability)) <= SAFE
        self._order = preference(problem.space.table, fits, problem.space.workload.cluster.gpus_per_node)
        self._rank = np.argsort(self._order)

    def propose(self) -> tuple[int, str] | None:
        candidates = self.worth_trying()
        if not len(candidates):
            return None
        index = int(candidates[np.argmin(self._rank[candidates])])
        return index, "rule of thumb: least model parallelism that should fit, then the largest micro-batch"


def preference(table: ConfigTable, fits: NDArray[np.bool_], gpus_per_node: int) -> NDArray[np.intp]:
    """Rows in the order in which an experienced person would try them, shape (N,)."""
    keys = (
        ~fits,
        table.tp > gpus_per_node,
        table.recompute,
        table.tp * table.pp * table.cp,
        table.pp,
        -table.micro_batch_size,
        table.zero_stage,
        table.virtual_stages,
    )
    return np.lexsort(tuple(reversed(keys)))
