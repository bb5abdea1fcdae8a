"""A searcher on the configs of the contract's world: so many trials are asked, measured and
told."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.search import Searcher
from autotune.space import SearchSpace
from autotune.spec import Trial
from autotune.testing.searchers import WORKLOAD, candidates, measured

SPACE = SearchSpace.of(WORKLOAD, candidates())
BEST = max(t.measurement.tokens_per_s for t in map(measured, candidates()) if t.is_measured)


def play(searcher: Searcher, trials: int, earlier: Sequence[Trial] = ()) -> list[Trial]:
    """All trials, when there are so many or nothing is left to be asked."""
    played = list(earlier)
    while len(played) < trials and (asked := searcher.ask(1)):
        played.append(measured(asked[0], number=len(played)))
        searcher.tell(played[-1:])
    return played


def share_of_best(trials: Sequence[Trial]) -> float:
    """The best speed that was measured, as a share of the best that there is."""
    return max((t.measurement.tokens_per_s for t in trials if t.is_measured), default=0.0) / BEST
