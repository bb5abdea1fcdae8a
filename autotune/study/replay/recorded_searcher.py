"""A searcher that asks for what is recorded, where the choices of the study's own cannot be made again.

It asks only for configs of the space that are free, as every searcher does; why it was these, and whether it was time to stop, is not checked.
"""

from __future__ import annotations

from typing import final

from autotune.search.searcher import FREE, Problem, Searcher
from autotune.spec import ParallelConfig


@final
class RecordedSearcher(Searcher):
    """Proposes the search trials that the decision at hand has asked for."""

    def __init__(self, problem: Problem, stop_reason: str) -> None:
        """`stop_reason`: why the search has ended, as it is recorded."""
        super().__init__(problem)
        self.coming: list[tuple[ParallelConfig, str]] = []
        """configs of the search trials that the decision at hand has asked for, with the reasons"""
        self._stop_reason = stop_reason

    def propose(self) -> tuple[int, str] | None:
        for config, reason in self.coming:
            index = self.space.index_of(config)
            if index is not None and self.state[index] == FREE:
                return index, reason
        return None

    def nothing_left(self) -> str:
        return self._stop_reason
