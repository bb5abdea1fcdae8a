"""Grid search: the candidates in the order of the space. It does not learn."""

from __future__ import annotations

from autotune.search.searcher import Searcher


class GridSearcher(Searcher):
    """Every config once, in the order of the space."""

    def propose(self) -> tuple[int, str] | None:
        free = self.free()
        if not len(free):
            return None
        return int(free[0]), f"candidate {free[0] + 1} of {len(self.space)}"
