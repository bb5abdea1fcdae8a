"""Chooses a study's next move whenever no trial waits for ranks: ask for trials, enter the next
phase, or end.

    baseline   the baseline, then the fp32 reference of its global batch if one is needed
    search     configs proposed by the searcher, each after the reference of its global batch, until a budget or the stop rule ends the search. After a change of
               the machine, first the repetitions it requires: the baseline, and configs that were judged unfairly
    finals     the finalists and the baseline, alternately

The searcher is told every trial that may win, in the order in which the trials end, with its
measurement corrected to the machine's first level. If the correction changes later, the searcher is
told the new values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.reward import competes
from autotune.spec import (
    Estimate,
    ParallelConfig,
    StandsFor,
    Study,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.study.controller.budget import Spent, search_is_over
from autotune.study.controller.commands import StudyPhase
from autotune.study.controller.finals.finalists import first_finalists, next_final
from autotune.study.controller.finals.remeasure import unfairly_judged, why_measure_default
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.stop_rule import not_worth_it
from autotune.study.controller.trial_index import TrialIndex

if TYPE_CHECKING:
    from autotune.search import Searcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for a trial."""

    config: ParallelConfig
    purpose: TrialPurpose
    reason: str
    """why the config is tried, for the trial's record"""
    stands_for: StandsFor | None = None
    """for a proxy: the target's config that it represents, and the proxy's workload"""
    estimate: Estimate | None = None
    """for a proxy: its prediction; other trials use the study's predictions"""

    def trial(self, study_id: str, study: Study, number: int, estimate: Estimate | None) -> Trial:
        """The requested trial under this number."""
        return Trial(
            config=self.config,
            number=number,
            study=study_id,
            seed=study.seed,
            purpose=self.purpose,
            estimate=estimate,
            reason=self.reason,
            stands_for=self.stands_for,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The next move of a study. One without asks and phase ends the study."""

    asks: tuple[Ask, ...] = ()
    """trials to make, in this order"""
    phase: StudyPhase | None = None
    """the phase to enter"""
    message: str = ""
    """why the phase is entered or the study ends"""


class Phases:
    """Chooses the moves of one study. Deterministic: its state depends only on the calls."""

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
        """fp32 configs by global batch that were not requested yet"""
        self._refuse = refuse
        self._no_proposal = ""
        """why the searcher proposes nothing until another trial ends; empty if it may"""
        self._told: dict[int, Trial] = {}
        """ended trials by number, as the searcher was told them"""
        self._levels = index.levels
        """the machine's levels used to correct these"""

    def restore(self, past: list[Trial]) -> StudyPhase:
        """Restore the state from the trials of earlier controllers, sorted by number, after
        `learn` was called for those that had ended. Returns the study's phase."""
        for trial in past:
            if not trial.status.is_terminal and trial.purpose is TrialPurpose.SEARCH:
                self._searcher.tell([trial])  # pending, so that it is not proposed again
            if (
                trial.purpose is TrialPurpose.REFERENCE
                and trial.status is not TrialStatus.CANCELLED
            ):
                self._references.pop(trial.config.global_batch_size, None)
        purposes = {t.purpose for t in past}
        if TrialPurpose.FINAL in purposes:
            return StudyPhase.FINALS
        return StudyPhase.SEARCH if TrialPurpose.SEARCH in purposes else StudyPhase.BASELINE

    def learn(self, trial: Trial) -> None:
        """Process a trial that ended."""
        self._no_proposal = ""
        default = self._index.baseline
        is_repeat = (
            trial.purpose is TrialPurpose.BASELINE
            and default is not None
            and default.number != trial.number
        )
        if (
            trial.purpose is not TrialPurpose.FINAL
            and not is_repeat
            and competes(trial, self._study)
        ):
            self._told[trial.number] = self._index.seen(trial)
            self._searcher.tell([self._told[trial.number]])
        self._correct(trial)

    def _correct(self, ended: Trial) -> None:
        """Tell the searcher about trials whose corrected measurement changed, and about earlier
        trials of a config that was re-measured, which no longer count."""
        replaced: list[int] = []
        if (
            ended.is_measured
            and ended.number in self._told
            and self._index.measured[ended.config] > 1
        ):
            replaced = [
                n for n, t in self._told.items() if n != ended.number and t.config == ended.config
            ]
        for number in replaced:
            del self._told[number]
        updated: dict[int, Trial] = {}
        before, self._levels = self._levels, self._index.levels
        if before is not self._levels and (before.is_uneven or self._levels.is_uneven):
            changed = [n for n in self._told if before.at(n).fast != self._levels.at(n).fast]
            seen = {n: self._index.seen(self._index.trials[n]) for n in changed}
            updated = {n: t for n, t in seen.items() if t.measurement != self._told[n].measurement}
            self._told |= updated
        if updated or replaced:
            self._searcher.correct(updated.values(), without=replaced)

    def refused(self, trial: Trial) -> None:
        """Process a requested trial that cannot be run; its `reason` says why."""
        self._no_proposal = ""
        if trial.purpose is TrialPurpose.BASELINE:
            self._baseline, self._index.refused_baseline = None, trial

    def next_move(self, phase: StudyPhase, *, running: int, spent: Spent) -> Move | None:
        """The next move; None: wait for the attempts that are running. `running`: their number."""
        if phase is StudyPhase.SEARCH:
            return self._search(running, spent)
        if running:
            return None
        return self._measure_baseline() if phase is StudyPhase.BASELINE else self._measure_final()

    def _measure_baseline(self) -> Move:
        if self._baseline is not None and TrialPurpose.BASELINE not in self._index.purposes:
            reason = "baseline: every trial is compared with it"
            return Move(
                asks=(Ask(config=self._baseline, purpose=TrialPurpose.BASELINE, reason=reason),)
            )
        if self._index.baseline is None:
            refused = self._index.refused_baseline
            why = (
                f"the baseline is not measured ({refused.reason})"
                if refused
                else "there is no measured baseline"
            )
            message = f"{why}, so rewards are relative to the first measured config"
        elif references := self._reference_for(self._index.baseline.config):
            return Move(asks=references)
        else:
            message = "baseline measured"
        return Move(phase=StudyPhase.SEARCH, message=message)

    def _search(self, running: int, spent: Spent) -> Move | None:
        budget = self._study.budget
        if running >= max(1, budget.parallel_trials):
            return None
        # the end of a job is fixed, so all tied configs must have had their final rounds before it
        racing = (
            len(first_finalists(self._index.listed(), self._study))
            if spent.left_s is not None
            else 0
        )
        reserve = self._index.reserve(self._study.measure, racing)
        reason = self._index.repeated_failure() or search_is_over(spent, budget, reserve)
        if not reason and (repetition := self._repetition()) is not None:
            return Move(asks=(repetition,))
        reason = reason or self._no_proposal or not_worth_it(self._searcher, self._index, budget)
        config = None if reason else next(iter(self._searcher.ask(1)), None)
        if config is not None:
            ask = Ask(
                config=config, purpose=TrialPurpose.SEARCH, reason=self._searcher.reason(config)
            )
            return Move(asks=(*self._reference_for(config), ask))
        self._no_proposal = reason = reason or self._searcher.nothing_left()
        if running:
            return None
        may_continue = not self._index.repeated_failure() and not search_is_over(
            replace(spent, trials=0), budget, reserve
        )
        if may_continue and (repetition := self._repetition(at_end=True)) is not None:
            return Move(asks=(repetition,))
        return Move(phase=StudyPhase.FINALS, message=reason)

    def _repetition(self, *, at_end: bool = False) -> Ask | None:
        """A measurement to repeat because the machine changed or may have: the baseline, or a config
        that was judged unfairly; None if there is none. `at_end`: the search has ended."""
        default = self._index.baseline
        if default is not None and (reason := why_measure_default(self._index, at_end=at_end)):
            return Ask(config=default.config, purpose=TrialPurpose.BASELINE, reason=reason)
        unfair = None if at_end else next(iter(unfairly_judged(self._index, self._study)), None)
        if unfair is None:
            return None
        reason = f"repeated: this config may beat the best, but trial {unfair.number} was measured before the machine changed, or was compared with a trial from before the change"
        return Ask(config=unfair.config, purpose=TrialPurpose.SEARCH, reason=reason)

    def _measure_final(self) -> Move:
        trials = self._index.listed()
        upcoming = next_final(first_finalists(trials, self._study), trials, self._study)
        if upcoming is None:
            return Move()
        reason = upcoming.reason(self._study.measure)
        return Move(asks=(Ask(config=upcoming.config, purpose=TrialPurpose.FINAL, reason=reason),))

    def _reference_for(self, config: ParallelConfig) -> tuple[Ask, ...]:
        """The reference trial whose fp32 losses will be compared with this config's. Empty if it is
        not needed, was requested before, or the trainer reports no losses."""
        batch, baseline = config.global_batch_size, self._index.baseline
        known = batch * self._study.workload.seq_len in self._scorer.fp32_losses
        if (
            known
            or config.precision == "fp32"
            or batch not in self._references
            or self._refuse(config)
        ):
            return ()
        if (
            baseline is not None
            and baseline.measurement is not None
            and not baseline.measurement.losses
        ):
            return ()  # this trainer reports no losses
        reason = f"the fp32 reference for losses in other precisions at a global batch of {batch}"
        return (
            Ask(config=self._references.pop(batch), purpose=TrialPurpose.REFERENCE, reason=reason),
        )
