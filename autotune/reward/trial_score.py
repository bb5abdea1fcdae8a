"""The score of a trial: its reward relative to the study's reference, and the order that it gives.

The reference is the measured baseline; without one it is the first trial that was measured. Where it tells no gradient noise scale it gets that
of the first trial that tells one: the scale belongs to model and data, not to the config.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.reward.goodput import with_noise_scale
from autotune.reward.total import reward
from autotune.spec import Measurement, Objective, Reward, Trial, TrialPurpose, Workload


def first_measured(trials: Sequence[Trial]) -> Trial | None:
    """What rewards are relative to where there is no measured baseline; fp32 references, which do not compete, aside."""
    measured = [t for t in trials if t.is_measured and t.purpose is not TrialPurpose.REFERENCE]
    return min(measured, key=lambda t: t.number, default=None)


def reference_of(trials: Sequence[Trial], baseline: Measurement | None) -> Measurement | None:
    """The measurement that the rewards of these trials are relative to; None when nothing was measured."""
    first = first_measured(trials)
    reference = baseline or (first.measurement if first is not None else None)
    if reference is None:
        return None
    return with_noise_scale(reference, (t.measurement for t in trials if t.is_measured))


def score(trial: Trial, *, reference: Measurement | None, objective: Objective, workload: Workload) -> Reward:
    """The reward of a trial with a measurement; without a reference relative to itself."""
    if trial.measurement is None:
        raise ValueError(f"a trial needs a measurement to be scored, but trial {trial.number} has none")
    return reward(trial.measurement, baseline=reference, objective=objective, workload=workload, config=trial.config)


def by_reward(trial: Trial) -> tuple[float, int]:
    """Sorts trials: best reward first, earlier number first among equals, unscored ones last."""
    return (-trial.reward.total if trial.reward is not None else math.inf, trial.number)


def rerank(
    trials: Sequence[Trial], *, objective: Objective, workload: Workload, baseline: Measurement | None
) -> list[Trial]:
    """The measured trials with their rewards under `objective`, best first; without a baseline relative to the first of them."""
    reference = reference_of(trials, baseline)
    scored = [
        replace(t, reward=score(t, reference=reference, objective=objective, workload=workload))
        for t in trials
        if t.is_measured
    ]
    return sorted(scored, key=by_reward)


def tokens_per_s(trial: Trial) -> float:
    """Measured tokens per second of the whole job; nan when nothing was measured."""
    return trial.measurement.tokens_per_s if trial.measurement is not None else math.nan
