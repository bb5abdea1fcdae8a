"""Configs that cannot be run here, counted by reason. They are no trials: nothing is asked for them
and nothing of them is stored but the counts.

laws, trainer    excluded when the space was enumerated (`SearchSpace.excluded`), by the name of the law or limit
ranks            need more ranks than the runner has: left out of the search before it begins
memory           the baseline and guesses of the user that are predicted to run out of memory: left out when their turn comes
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
    """The counts of one study, and the searcher that must not propose what is counted."""

    def __init__(self, searcher: Searcher, capacity: int, *, has_target: bool = False) -> None:
        """`capacity`: ranks of the runner. `has_target`: the space is that of a target, whose
        configs need not run here."""
        self._searcher = searcher
        self._counts = Counter(searcher.space.excluded)
        self.refused = 0
        """that were asked for and refused"""
        too_large = np.flatnonzero(searcher.space.table.world_size > capacity)
        if len(too_large) and not has_target:
            self._counts[too_many_ranks(capacity)] = len(too_large)
            searcher.leave_out(too_large)

    def refuse(self, config: ParallelConfig, reason: str) -> None:
        """Counts a config that cannot be run, and leaves it out of the search."""
        self.refused += 1
        index = self._searcher.space.index_of(config)
        if index is not None and self._searcher.left_out[index]:
            return  # counted before
        self._counts[reason] += 1
        if index is not None:
            self._searcher.leave_out(np.array([index]))

    @property
    def counts(self) -> Mapping[str, int]:
        """Configs by reason, the most frequent first."""
        return dict(self._counts.most_common())


def too_many_ranks(capacity: int) -> str:
    """The reason of configs that need more ranks than the runner has."""
    return f"more ranks than the runner's {capacity}"
