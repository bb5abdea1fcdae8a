"""Rule of thumb: the order in which an experienced engineer tries configs, without a model of time.

The rules are from the guides of Megatron-LM and the Ultra-Scale Playbook. The most important come
first: the least model parallelism that fits; tensor parallelism inside an NVLink domain (usually a
node) before pipeline parallelism; no recomputation before selective before full; lower ZeRO stages
first; then the largest micro-batch. The memory estimate decides which configs should fit; those
that an out-of-memory failure rules out are skipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.searcher import Problem, Searcher
from autotune.spec import ConfigTable

SAFE = 0.5
"""maximum probability of running out of memory for a config to count as fitting"""


class RuleOfThumbSearcher(Searcher):
    """The least model parallelism that should fit, then the largest micro-batch."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        fits = np.atleast_1d(np.asarray(problem.predict().oom_probability)) <= SAFE
        self._order = preference(
            problem.space.table, fits, problem.space.workload.cluster.domain_gpus
        )
        self._rank = np.argsort(self._order)

    def propose(self) -> tuple[int, str] | None:
        candidates = self.eligible()
        if not len(candidates):
            return None
        index = int(candidates[np.argmin(self._rank[candidates])])
        return (
            index,
            "rule of thumb: the least model parallelism that should fit, then the largest micro-batch",
        )


def preference(table: ConfigTable, fits: NDArray[np.bool_], domain_gpus: int) -> NDArray[np.intp]:
    """Row indices in order of preference, shape (N,). `fits`: mask of the rows that should fit;
    `domain_gpus`: GPUs of an NVLink domain."""
    keys = (
        ~fits,
        table.tp > domain_gpus,
        table.recompute,
        table.tp * table.pp * table.cp,
        table.pp,
        -table.micro_batch_size,
        table.zero_stage,
        table.virtual_stages,
    )
    return np.lexsort(tuple(reversed(keys)))
