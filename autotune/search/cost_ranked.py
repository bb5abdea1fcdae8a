"""Cost-ranked search: the candidates in the order of the cost model, without those that earlier
failures rule out.

    rank by    predicted throughput * P(fits)

It does not learn from measurements, except the gradient noise scale if the objective is goodput.
"""

from __future__ import annotations

import numpy as np

from autotune.search.objective_model import predicted_objective
from autotune.search.searcher import Problem, Searcher
from autotune.spec import Trial
from autotune.spec.texts.as_text import format_count


class CostRankedSearcher(Searcher):
    """The cost model's order, skipping configs that earlier failures rule out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._estimate = problem.predict()
        self._rank()

    def learn(self, index: int | None, trial: Trial) -> None:
        if self.problem.objective.metric == "goodput":
            self._rank()

    def relearn(self) -> None:
        self._rank()

    def _rank(self) -> None:
        with np.errstate(divide="ignore"):
            fits = np.log1p(-np.minimum(np.atleast_1d(self._estimate.oom_probability), 1.0))
        predicted = predicted_objective(
            self.problem, self._estimate, [trial for _, trial in self.trials]
        )
        self._order = np.argsort(-(predicted + fits), kind="stable")

    def propose(self) -> tuple[int, str] | None:
        is_eligible = np.zeros(len(self.space), dtype=np.bool_)
        is_eligible[self.eligible()] = True
        ranks = np.flatnonzero(is_eligible[self._order])
        if not len(ranks):
            return None
        index = int(self._order[ranks[0]])
        row = self._estimate.row(index)
        return index, (
            f"number {ranks[0] + 1} in the cost model's ranking: {format_count(float(row.tokens_per_s))} tokens/s, "
            f"out of memory with probability {row.oom_probability:.0%}"
        )
