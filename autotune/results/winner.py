"""The winner of a study, the ranking of its configs, and the ranking of configs across studies.

`autotune.study.controller.decide` chooses the winner by the final rounds, or by the first
measurements before the finals. All commands, pages and reports get winner, baseline and speedup
from here, so that they agree.
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
    """Return the winner of a study that has ended, or the best trial so far."""
    if not record.status.is_terminal:
        return decide(trials, record.study)
    finalists = [
        ParallelConfig.from_dict(final["config"]) for final in record.result.get("finals", ())
    ]
    return decide(trials, record.study, finalists)


def standings(
    best: Trial | None, confirmed: Sequence[Trial], trials: Sequence[Trial], study: Study
) -> list[Trial]:
    """Return one trial for each measured config, without configs that failed in the finals.
    `trials`: with the corrected figures of their configs.

    The order is the winner, the others that beat the baseline in the finals, and the rest, each by
    reward. Re-measured configs come first because a config that was measured once may have been
    lucky.
    """
    by_config: dict[ParallelConfig, Trial] = {}
    rewarded = (t for t in may_win(trials, study) if t.reward is not None)
    for trial in [*confirmed, *sorted(rewarded, key=reward.by_reward)]:
        by_config.setdefault(trial.config, trial)
    baseline_order = next(
        (reward.by_reward(t) for t in confirmed if t.purpose is TrialPurpose.BASELINE), None
    )
    proven = {
        t.number
        for t in confirmed
        if baseline_order is None or reward.by_reward(t) < baseline_order
    }
    first = best.config if best else None
    return sorted(
        by_config.values(),
        key=lambda t: (t.config != first, t.number not in proven, reward.by_reward(t)),
    )


def may_win(trials: Sequence[Trial], study: Study) -> list[Trial]:
    """Return one trial of the search for each config that may win, by number. Configs that failed
    in the finals and fp32 references outside the space cannot win."""
    failed = failed_in_finals(trials)
    return [
        t
        for t in reward.counted_once(trials)
        if t.config not in failed and reward.competes(t, study)
    ]


def confirmed_best(store: HistoryReader, **filters: Any) -> list[tuple[StudyRecord, Trial]]:
    """Return the best trials of all studies, best first. Re-measured configs have the speed and the
    reward of the finals. `filters`: of `HistoryReader.best`."""
    return [(record, _as_confirmed(record, trial)) for record, trial in store.best(**filters)]


def _as_confirmed(record: StudyRecord, trial: Trial) -> Trial:
    """Return the trial with its config's speed and reward in the finals."""
    speeds = speeds_in_finals(record.result)
    if trial.measurement is None or not speeds:
        return trial
    speed = speeds.get(trial.config, tokens_per_s(trial))
    measurement = slowed(trial.measurement, tokens_per_s(trial) / speed)
    return replace(trial, measurement=measurement, reward=_reward_at(speed, record, trial))


def _reward_at(speed: float, record: StudyRecord, trial: Trial) -> Reward | None:
    """Return the trial's reward at this speed (tokens/s), relative to the baseline in the finals;
    unchanged if the baseline was not re-measured."""
    finals = record.result["finals"]
    baseline_speed = next(
        (final["tokens_per_s"] for final in finals if final.get("number") == record.baseline), None
    )
    ratio = trial.reward.parts.get("tokens_per_s_ratio") if trial.reward is not None else None
    if trial.reward is None or not baseline_speed or not ratio:
        return trial.reward
    return moved(
        trial.reward,
        math.log(speed / baseline_speed / ratio),
        record.study.objective.stability_weight,
    )
