"""What a study with a target does next: one proxy after another, until none is expected to change
the target's ranking, or a budget ends it.

    search   the proxy that the searcher proposes (`autotune.search.target_searcher`)

Proxies are trainings of different workloads, so nothing compares one with another: there is no
baseline to beat, no reference of losses, no reward and no final round. A proxy that fails is what
the searcher learns memory and failures from, as of any trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from autotune.spec import ParallelConfig, StandsFor, Study, Trial, TrialPurpose
from autotune.study.controller.budget import Reserve, Spent, search_is_over
from autotune.study.controller.commands import StudyPhase
from autotune.study.controller.phases import Ask, Move, Phases
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.trial_index import TrialIndex

if TYPE_CHECKING:
    from autotune.search import Searcher
    from autotune.search.target_searcher import TargetSearcher


class ProxyPhases:
    """Proposes the moves of one study with a target. Changed only by what it is told and asked."""

    def __init__(self, study: Study, searcher: TargetSearcher, index: TrialIndex) -> None:
        self._study, self._searcher, self._index = study, searcher, index

    def restore(self, past: list[Trial]) -> StudyPhase:
        """Takes in the trials of an earlier controller, by number, that had not ended."""
        self._searcher.tell([t for t in past if not t.status.is_terminal])
        return StudyPhase.SEARCH if past else StudyPhase.BASELINE

    def learn(self, trial: Trial) -> None:
        """Takes in a proxy that ended."""
        self._searcher.tell([trial])

    def refused(self, trial: Trial) -> None:
        """A proxy that cannot be run stays asked for: it is not proposed again."""

    def next_move(self, phase: StudyPhase, *, running: int, spent: Spent) -> Move | None:
        """What is done next with `running` attempts under way; None: wait for them."""
        budget = self._study.budget
        if phase is StudyPhase.BASELINE:
            at_hand, target = self._searcher.at_hand, self._study.workload.cluster
            return Move(
                phase=StudyPhase.SEARCH,
                message=f"proxies on {at_hand.name} represent configs of {target.name}",
            )
        if running >= max(1, budget.parallel_trials):
            return None
        over = self._index.repeated_failure() or search_is_over(spent, budget, Reserve())
        config = None if over else next(iter(self._searcher.ask(1)), None)
        if config is not None:
            return Move(asks=(self._ask(config),))
        return None if running else Move(message=over or self._searcher.nothing_left())

    def _ask(self, config: ParallelConfig) -> Ask:
        proxy = self._searcher.proxy_for(config)
        return Ask(
            config=proxy.config,
            purpose=TrialPurpose.PROXY,
            reason=self._searcher.reason(config),
            stands_for=StandsFor(config=config, workload=proxy.workload),
            estimate=self._searcher.estimate_of(proxy),
        )


def phases_of(
    study: Study,
    searcher: Searcher,
    index: TrialIndex,
    scorer: Scorer,
    *,
    baseline: ParallelConfig | None,
    references: Mapping[int, ParallelConfig],
    refuse: Callable[[ParallelConfig], str],
) -> Phases | ProxyPhases:
    """The phases of a study: proxies where it has a target."""
    if study.at_hand is not None:
        return ProxyPhases(study, cast("TargetSearcher", searcher), index)
    return Phases(
        study, searcher, index, scorer, baseline=baseline, references=references, refuse=refuse
    )
