"""Counts the configs that cannot be run here by reason. They are not trials; only the counts are
stored.

rules, trainer   excluded when the space was enumerated (`SearchSpace.excluded`), by the name of the rule or limit
ranks            configs that need more ranks than the runner has: excluded before the search
memory           the baseline and enqueued configs that are predicted to run out of memory: excluded when they are next
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autotune.spec import ParallelConfig

if TYPE_CHECKING:
    from autotune.search import Searcher


class InfeasibleConfigs:
    """Counts the infeasible configs of one study, and excludes them from its searcher."""

    def __init__(self, searcher: Searcher, capacity: int, *, has_target: bool = False) -> None:
        """`capacity`: number of ranks of the runner. `has_target`: the space is that of a target,
        whose configs need not run here."""
        self._searcher = searcher
        self._counts = Counter(searcher.space.excluded)
        self.refused = 0
        """number of requested configs that were rejected"""
        too_large = np.flatnonzero(searcher.space.table.world_size > capacity)
        if len(too_large) and not has_target:
            self._counts[too_many_ranks(capacity)] = len(too_large)
            searcher.leave_out(too_large)

    def refuse(self, config: ParallelConfig, reason: str) -> None:
        """Count a config that cannot be run, and exclude it from the search."""
        self.refused += 1
        index = self._searcher.space.index_of(config)
        if index is not None and self._searcher.left_out[index]:
            return  # counted before
        self._counts[reason] += 1
        if index is not None:
            self._searcher.leave_out(np.array([index]))

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of configs by reason, the most frequent first."""
        return dict(self._counts.most_common())


def too_many_ranks(capacity: int) -> str:
    """The reason for configs that need more ranks than the runner has."""
    return f"more ranks than the runner's {capacity}"
