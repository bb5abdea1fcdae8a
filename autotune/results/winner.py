"""Who won a study, and its configs best first.

The rule is `autotune.study.controller.decide`: the final rounds, else the first measurements. Everybody who names a winner, a baseline or a speedup
asks here, so that `status`, `best`, `explain` and the report agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune import reward
from autotune.ports import StudyRecord
from autotune.spec import ParallelConfig, Study, Trial, TrialPurpose
from autotune.study.controller import Winner, decide, failed_in_finals, first_measurements


def winner_of(record: StudyRecord, trials: Sequence[Trial]) -> Winner:
    """The winner of a study that has ended, else the best so far."""
    if not record.status.is_terminal:
        return decide(trials, record.study)
    finalists = [ParallelConfig.from_dict(final["config"]) for final in record.result.get("finals", ())]
    return decide(trials, record.study, finalists)


def standings(best: Trial | None, confirmed: Sequence[Trial], trials: Sequence[Trial], study: Study) -> list[Trial]:
    """One trial for each measured config: the winner, then the others by reward, without those that failed in the finals. What was measured
    again counts with that measurement."""
    failed = failed_in_finals(trials)
    seen: dict[ParallelConfig, Trial] = {}
    for trial in [*confirmed, *first_measurements(trials, study)]:
        if trial.config not in failed:
            seen.setdefault(trial.config, trial)
    first = best.config if best else None
    return sorted(seen.values(), key=lambda t: (t.config != first, reward.by_reward(t)))


def as_confirmed(confirmed: Sequence[Trial], trials: Sequence[Trial], study: Study) -> list[Trial]:
    """Each first trial that may win, by number, with what the finals measured where they did; without configs that failed there."""
    again, failed = {t.number: t for t in confirmed}, failed_in_finals(trials)
    first = (t for t in trials if t.purpose is not TrialPurpose.FINAL and t.config not in failed)
    return [again.get(t.number, t) for t in first if reward.competes(t, study)]
