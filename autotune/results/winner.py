"""Who won a study, and its configs best first.

The rule is `autotune.study.controller.decide`: the final rounds, else the first measurements.
Everybody who names a winner, a baseline or a speedup asks here, so that `status`, `best`, `explain`
and the report agree.

Measured configs of many studies in the order in which they stand, each as its study's finals showed
it (`autotune.reward.ranking`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune import reward
from autotune.ports import HistoryReader, StudyRecord
from autotune.reward import moved, slowed, speeds_in_finals, tokens_per_s
from autotune.spec import ParallelConfig, Reward, Study, Trial, TrialPurpose
from autotune.study.controller import Winner, decide, failed_in_finals


def winner_of(record: StudyRecord, trials: Sequence[Trial]) -> Winner:
    """The winner of a study that has ended, else the best so far."""
    if not record.status.is_terminal:
        return decide(trials, record.study)
    finalists = [
        ParallelConfig.from_dict(final["config"]) for final in record.result.get("finals", ())
    ]
    return decide(trials, record.study, finalists)


def standings(
    best: Trial | None, confirmed: Sequence[Trial], trials: Sequence[Trial], study: Study
) -> list[Trial]:
    """One trial for each measured config, without those that failed in the finals; `trials`: with
    their configs' figures.

    The winner, then the others that beat the baseline in the finals, then the rest, each by reward:
    of two configs that look alike, the one that was measured once may have been lucky, and does not
    stand before the one that was re-measured.
    """
    seen: dict[ParallelConfig, Trial] = {}
    rewarded = (t for t in may_win(trials, study) if t.reward is not None)
    for trial in [*confirmed, *sorted(rewarded, key=reward.by_reward)]:
        seen.setdefault(trial.config, trial)
    default = next(
        (reward.by_reward(t) for t in confirmed if t.purpose is TrialPurpose.BASELINE), None
    )
    proven = {t.number for t in confirmed if default is None or reward.by_reward(t) < default}
    first = best.config if best else None
    return sorted(
        seen.values(),
        key=lambda t: (t.config != first, t.number not in proven, reward.by_reward(t)),
    )


def may_win(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """The trial of the search that counts for each config, by number, unless it cannot win: it
    failed in the finals, or is an fp32 reference outside the space."""
    failed = failed_in_finals(trials)
    once = (t for t in reward.counted_once(trials) if t.config not in failed)
    return [t for t in once if reward.competes(t, study)]


def confirmed_best(store: HistoryReader, **filters: Any) -> list[tuple[StudyRecord, Trial]]:
    """The best of all studies, best first; configs that were re-measured have the speed of the
    finals, and rewards are relative to the baseline there. `filters`: of `HistoryReader.best`."""
    return [(record, _as_confirmed(record, trial)) for record, trial in store.best(**filters)]


def _as_confirmed(record: StudyRecord, trial: Trial) -> Trial:
    speeds = speeds_in_finals(record.result)
    if trial.measurement is None or not speeds:
        return trial
    speed = speeds.get(trial.config, tokens_per_s(trial))
    measurement = slowed(trial.measurement, tokens_per_s(trial) / speed)
    return replace(trial, measurement=measurement, reward=_reward_at(speed, record, trial))


def _reward_at(speed: float, record: StudyRecord, trial: Trial) -> Reward | None:
    """The trial's reward at that speed, relative to the baseline in the finals; unchanged if the
    baseline was not re-measured."""
    finals = record.result["finals"]
    default = next(
        (final["tokens_per_s"] for final in finals if final.get("number") == record.baseline), None
    )
    ratio = trial.reward.parts.get("tokens_per_s_ratio") if trial.reward is not None else None
    if trial.reward is None or not default or not ratio:
        return trial.reward
    return moved(
        trial.reward, math.log(speed / default / ratio), record.study.objective.stability_weight
    )
