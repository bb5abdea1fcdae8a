"""Chooses the next move of a study with a target: run one proxy after another, until none is expected
to change the target's ranking, or a budget ends the study.

    search   the proxy that the searcher proposes (`autotune.search.target_searcher`)

Proxies train different workloads and cannot be compared with each other: there is no baseline, no
reference for losses, no reward and no final round. The searcher learns about memory and failures from
failed proxies, as from any trial.
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
    """Chooses the moves of one study with a target. Deterministic: its state depends only on the
    calls."""

    def __init__(self, study: Study, searcher: TargetSearcher, index: TrialIndex) -> None:
        self._study, self._searcher, self._index = study, searcher, index

    def restore(self, past: list[Trial]) -> StudyPhase:
        """Restore the state from the trials of earlier controllers, after `learn` was called for
        those that had ended. Returns the study's phase."""
        self._searcher.tell([t for t in past if not t.status.is_terminal])
        return StudyPhase.SEARCH if past else StudyPhase.BASELINE

    def learn(self, trial: Trial) -> None:
        """Process a proxy that ended."""
        self._searcher.tell([trial])

    def refused(self, trial: Trial) -> None:
        """Nothing to do: the searcher does not propose a rejected proxy again."""

    def next_move(self, phase: StudyPhase, *, running: int, spent: Spent) -> Move | None:
        """The next move; None: wait for the attempts that are running. `running`: their number."""
        budget = self._study.budget
        if phase is StudyPhase.BASELINE:
            at_hand, target = self._searcher.at_hand, self._study.workload.cluster
            return Move(
                phase=StudyPhase.SEARCH,
                message=f"proxies on {at_hand.name} represent configs of {target.name}",
            )
        if running >= max(1, budget.parallel_trials):
            return None
        reason = self._index.repeated_failure() or search_is_over(spent, budget, Reserve())
        config = None if reason else next(iter(self._searcher.ask(1)), None)
        if config is not None:
            return Move(asks=(self._ask(config),))
        return None if running else Move(message=reason or self._searcher.nothing_left())

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
    """The phases of a study: those of proxies if it has a target."""
    if study.at_hand is not None:
        return ProxyPhases(study, cast("TargetSearcher", searcher), index)
    return Phases(
        study, searcher, index, scorer, baseline=baseline, references=references, refuse=refuse
    )
