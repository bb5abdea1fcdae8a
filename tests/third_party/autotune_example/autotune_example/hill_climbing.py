"""Hill climbing: the next config is one that differs from the best so far in the fewest knobs.

A searcher says which candidate comes next (`propose`) and why. It must follow from the problem and
from the trials told so far alone, since a study that is resumed makes it anew and tells it all
trials again. That holds here: the only random thing is an order that follows from the seed.
"""

from __future__ import annotations

import numpy as np

from autotune.search import Problem, Searcher, score


class HillClimbingSearcher(Searcher):
    """Hill climbing: what differs from the best config so far in the fewest knobs."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        count, table = len(problem.space), problem.space.table
        columns = [
            table.column(name) for name, values in problem.space.knobs.items() if len(values) > 1
        ]
        # (candidates, knobs)
        self._knobs = np.stack(columns, axis=1) if columns else np.zeros((count, 0))
        # decides among equals, and before anything is measured
        self._order = np.random.default_rng(problem.seed).permutation(count)

    def propose(self) -> tuple[int, str] | None:
        """The nearest eligible neighbour of the best candidate."""
        eligible = self.eligible()
        if not len(eligible):
            return None
        measured = [
            (score(trial), index)
            for index, trial in self.trials
            if index is not None and trial.is_measured
        ]
        if not measured:
            return int(min(eligible, key=lambda index: self._order[index])), "a random start"
        _, best = max(measured)
        differing = (self._knobs[eligible] != self._knobs[best]).sum(axis=1)
        place = np.lexsort((self._order[eligible], differing))[0]
        return int(
            eligible[place]
        ), f"differs in {differing[place]} knobs from the best so far, {self.space[best]}"
