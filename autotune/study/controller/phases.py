"""What a study does next in each phase, whenever no trial waits for ranks: ask for trials, enter the next phase, or end.

    baseline   the default config, then the fp32 reference of its global batch where one is wanted
    search     what the searcher proposes, each after the reference of its global batch, until a budget or the stop rule ends it
    finals     the finalists and the baseline, in turn

The searcher lives here: it is told every trial that may win, in the order in which the trials end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.reward import competes
from autotune.spec import Estimate, ParallelConfig, Study, Trial, TrialPurpose, TrialStatus
from autotune.study.controller.budget import Spent, search_is_over
from autotune.study.controller.commands import StudyPhase
from autotune.study.controller.finals import next_final, participants
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.stop_rule import not_worth_it
from autotune.study.controller.trial_index import TrialIndex

if TYPE_CHECKING:
    from autotune.search import Searcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A trial is wanted."""

    config: ParallelConfig
    purpose: TrialPurpose
    reason: str
    """why it is tried, in words"""

    def trial(self, study_id: str, study: Study, number: int, estimate: Estimate | None) -> Trial:
        """The trial that it becomes."""
        return Trial(
            config=self.config,
            number=number,
            study=study_id,
            seed=study.seed,
            purpose=self.purpose,
            estimate=estimate,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What is done next; without asks and phase the study is at its end."""

    asks: tuple[Ask, ...] = ()
    """trials to make, in this order"""
    phase: StudyPhase | None = None
    """the phase that is entered"""
    message: str = ""
    """why it is entered, in words"""


class Phases:
    """Proposes the moves of one study. Changed only by what it is told and asked."""

    def __init__(
        self,
        study: Study,
        searcher: Searcher,
        index: TrialIndex,
        scorer: Scorer,
        *,
        baseline: ParallelConfig | None,
        references: Mapping[int, ParallelConfig],
        refuse: Callable[[ParallelConfig], str],
    ) -> None:
        self._study = study
        self._searcher = searcher
        self._index = index
        self._scorer = scorer
        self._baseline = baseline
        self._references = dict(references)
        """fp32 configs by global batch that were not asked for yet"""
        self._refuse = refuse
        self._quiet = ""
        """why the searcher has nothing to propose until another trial ends, in words"""

    def restore(self, past: list[Trial]) -> StudyPhase:
        """Takes in the trials of an earlier controller, by number, that had not ended; returns the phase that the study was in."""
        for trial in past:
            if not trial.status.is_terminal and trial.purpose is TrialPurpose.SEARCH:
                self._searcher.tell([trial])  # pending: not to be asked again
            if trial.purpose is TrialPurpose.REFERENCE and trial.status is not TrialStatus.CANCELLED:
                self._references.pop(trial.config.global_batch_size, None)
        purposes = {t.purpose for t in past}
        if TrialPurpose.FINAL in purposes:
            return StudyPhase.FINALS
        return StudyPhase.SEARCH if TrialPurpose.SEARCH in purposes else StudyPhase.BASELINE

    def learn(self, trial: Trial) -> None:
        """Takes in a trial that ended."""
        self._quiet = ""
        if trial.purpose is not TrialPurpose.FINAL and competes(trial, self._study):
            self._searcher.tell([trial])

    def next_move(self, phase: StudyPhase, *, running: int, spent: Spent) -> Move | None:
        """What is done next with `running` attempts under way; None: wait for them."""
        if phase is StudyPhase.SEARCH:
            return self._search(running, spent)
        if running:
            return None
        return self._measure_baseline() if phase is StudyPhase.BASELINE else self._measure_again()

    def _measure_baseline(self) -> Move:
        if self._baseline is not None and TrialPurpose.BASELINE not in self._index.purposes:
            reason = "the default config, which everything is compared with"
            return Move(asks=(Ask(config=self._baseline, purpose=TrialPurpose.BASELINE, reason=reason),))
        if self._index.baseline is None:
            message = "there is no measured baseline: rewards are relative to the first config that is measured"
        elif references := self._reference_for(self._index.baseline.config):
            return Move(asks=references)
        else:
            message = "the baseline is measured"
        return Move(phase=StudyPhase.SEARCH, message=message)

    def _search(self, running: int, spent: Spent) -> Move | None:
        budget = self._study.budget
        if running >= max(1, budget.parallel_trials):
            return None
        reason = (
            self._index.repeated_failure()
            or search_is_over(spent, budget, self._index.reserve(self._study.measure))
            or self._quiet
            or not_worth_it(self._searcher, self._index, budget)
        )
        config = None if reason else next(iter(self._searcher.ask(1)), None)
        if config is not None:
            ask = Ask(config=config, purpose=TrialPurpose.SEARCH, reason=self._searcher.reason(config))
            return Move(asks=(*self._reference_for(config), ask))
        self._quiet = reason = reason or self._searcher.nothing_left()
        return None if running else Move(phase=StudyPhase.FINALS, message=reason)

    def _measure_again(self) -> Move:
        trials, rounds = self._index.listed(), self._study.measure.final_rounds
        finals = [t for t in trials if t.purpose is TrialPurpose.FINAL]
        upcoming = next_final(participants(trials, self._study), finals, rounds)
        if upcoming is None:
            return Move()
        r, config = upcoming
        reason = f"measured again: round {r + 1} of {rounds}"
        return Move(asks=(Ask(config=config, purpose=TrialPurpose.FINAL, reason=reason),))

    def _reference_for(self, config: ParallelConfig) -> tuple[Ask, ...]:
        """The trial whose fp32 losses this config's will be held against; none where they are known, or cannot be."""
        batch, baseline = config.global_batch_size, self._index.baseline
        known = batch * self._study.workload.seq_len in self._scorer.fp32_losses
        if known or config.precision == "fp32" or batch not in self._references or self._refuse(config):
            return ()
        if baseline is not None and baseline.measurement is not None and not baseline.measurement.losses:
            return ()  # this trainer does not tell its losses
        reason = f"the fp32 reference: losses in other precisions at a global batch of {batch} are compared with it"
        return (Ask(config=self._references.pop(batch), purpose=TrialPurpose.REFERENCE, reason=reason),)
