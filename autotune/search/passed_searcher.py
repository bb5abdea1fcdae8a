"""A searcher that Python code passes as an object: it is taken once, and only where it fits the study."""

from __future__ import annotations

from typing import final

from autotune.errors import SpecError
from autotune.search.searcher import Problem, Searcher
from autotune.space import SearchSpace


@final
class OneSearcher:
    """Makes no searcher anew, but hands out one that its owner made: once for a study, before it was told anything.

    Whoever resumes the study passes a fresh one, which is then told all trials again.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher

    def __call__(self, problem: Problem) -> Searcher:
        """The searcher. Raises `SpecError` when it searches another space than the study's, or has been told trials already."""
        mine = self.searcher
        if mine.trials or mine.state.any():
            raise SpecError(
                "a searcher that is passed must be a fresh one: a study tells it all its trials, but this one was asked or told before",
                remedy="pass a new one, or its class",
                field="searcher",
            )
        if not _are_same(mine.space, problem.space):
            raise SpecError(
                f"a searcher that is passed must search the study's space of {len(problem.space):,} configs, but its own has {len(mine.space):,}",
                remedy="make it with SearchSpace.of_study(study), or pass its class",
                field="searcher",
            )
        if tuple(mine.problem.enqueue) != problem.enqueue:
            raise SpecError(
                f"a searcher that is passed must try the study's {len(problem.enqueue)} enqueued configs first, but it has {len(mine.problem.enqueue)}",
                remedy="make it with Problem(space=..., enqueue=study.enqueue), or pass its class",
                field="searcher",
            )
        return mine


def _are_same(one: SearchSpace, other: SearchSpace) -> bool:
    """Whether two spaces hold the same configs in the same order."""
    a, b = one.table, other.table
    return len(a) == len(b) and a.knobs == b.knobs and all((a.column(n) == b.column(n)).all() for n in a.knobs)
