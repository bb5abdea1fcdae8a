"""Cost order: the candidates as the cost model ranks them, skipping what earlier failures rule out. It does not learn otherwise.

Rank: expected tokens per second, predicted throughput times the probability that it fits.
"""

from __future__ import annotations

import numpy as np

from autotune.search.searcher import Problem, Searcher
from autotune.search.worth import predicted_worth


class CostRankedSearcher(Searcher):
    """The best prediction first."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        estimate = problem.predict()
        with np.errstate(divide="ignore"):
            fits = np.log1p(-np.minimum(np.atleast_1d(estimate.oom_probability), 1.0))
        self._order = np.argsort(-(predicted_worth(problem, estimate) + fits), kind="stable")
        self._estimate = estimate

    def propose(self) -> tuple[int, str] | None:
        open_ = np.zeros(len(self.space), dtype=np.bool_)
        open_[self.worth_trying()] = True
        ranks = np.flatnonzero(open_[self._order])
        if not len(ranks):
            return None
        index = int(self._order[ranks[0]])
        row = self._estimate.row(index)
        return index, (
            f"rank {ranks[0] + 1} of the cost model: {row.tokens_per_s:.4g} tokens/s, "
            f"out of memory with probability {row.oom_probability:.0%}"
        )
