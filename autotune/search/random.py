"""Random search: the candidates in a random order, a reference for other searchers."""

from __future__ import annotations

from autotune.search.searcher import FREE, Problem, Searcher, permutation


class RandomSearcher(Searcher):
    """Every config once, in a random order that depends only on the seed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._order = permutation(len(problem.space), problem.seed)

    def propose(self) -> tuple[int, str] | None:
        return next(((i, "drawn at random") for i in self._order if self.state[i] == FREE), None)
