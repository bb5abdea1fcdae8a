"""The reward of a trial: what the study maximizes.

    total = (1 - w) * throughput + w * stability          w = objective.stability_weight

    throughput   ln of the ratio between a trial's metric and that of the reference: tokens/s of the whole job (throughput), tokens/s times the
                 statistical efficiency of the batch (goodput), or tokens per unit of cost (cost). 0 is the baseline, and doubling always adds ln 2
    stability    0 to 1, see `stability.py`

With w = 0.2, a config that is certain to fail (stability 0) must be 28% faster to tie with a
healthy one. Hard gates apply at any weight: a diverged trial gets `DIVERGED_CEILING`, the total of
a healthy config that is e^10 = 22,000 times slower than the baseline (w = 0). Only ratios of
measurements are used, so units cancel.

The reference is the measured baseline, or without one the first measured trial. If its gradient
noise scale is unknown, it gets that of the first trial with a known one, because the scale depends
on model and data, not on the config.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.reward.goodput import efficiency, study_noise_scale, with_noise_scale
from autotune.reward.price import token_cost
from autotune.reward.stability import diverged, stability_of, stability_parts
from autotune.spec import (
    Measurement,
    Objective,
    ParallelConfig,
    Reward,
    Trial,
    TrialPurpose,
    Workload,
)

DIVERGED_CEILING = -10.0
"""total of a diverged trial, and the minimum of any total"""


def reward(
    measurement: Measurement,
    *,
    baseline: Measurement | None,
    objective: Objective,
    workload: Workload,
    config: ParallelConfig,
) -> Reward:
    """The reward of a measurement relative to the baseline (None: relative to itself, so that its
    throughput term is 0).

    `parts` of the result holds the parts of stability (0 to 1) and the terms of the throughput:
    tokens_per_s_ratio, efficiency (relative to the baseline's batch), noise_scale (sequences),
    cost_ratio.
    """
    reference = baseline if baseline is not None and _is_sound(baseline) else measurement
    parts = stability_parts(measurement)
    if not _is_sound(measurement) or diverged(measurement) is not None:
        return Reward(
            total=DIVERGED_CEILING, throughput=DIVERGED_CEILING, stability=0.0, parts=parts
        )
    ratio = measurement.tokens_per_s / reference.tokens_per_s
    terms = {"tokens_per_s_ratio": ratio}
    if objective.metric == "goodput":
        phi = study_noise_scale(measurement, baseline)
        gained = efficiency(
            config.global_batch_size, reference.tokens_per_step / workload.tokens_per_sequence, phi
        )
        per_node = workload.cluster.gpus_per_node
        kept = objective.training_share(config.world_size, per_node) / objective.training_share(
            reference.num_ranks, per_node
        )
        gained *= kept
        if objective.failures is not None:
            terms["kept_share_ratio"] = kept
        terms["efficiency"] = gained
        if phi is not None and math.isfinite(phi):
            terms["noise_scale"] = phi
        throughput = math.log(ratio * gained)
    elif objective.metric == "cost":
        cost = token_cost(measurement, workload.cluster.gpu)
        reference_cost = token_cost(reference, workload.cluster.gpu)
        if cost.source == reference_cost.source:
            terms["cost_ratio"] = cost.value / reference_cost.value
        else:  # power was measured in only one of the two, so rank-seconds are compared
            terms["cost_ratio"] = measurement.num_ranks / reference.num_ranks / ratio
        throughput = -math.log(terms["cost_ratio"])
    else:
        throughput = math.log(ratio)
    stability = stability_of(parts)
    w = objective.stability_weight
    total = max((1.0 - w) * throughput + w * stability, DIVERGED_CEILING)
    return Reward(total=total, throughput=throughput, stability=stability, parts=parts | terms)


def _is_sound(measurement: Measurement) -> bool:
    return math.isfinite(measurement.tokens_per_s) and measurement.tokens_per_s > 0


def first_measured(trials: Sequence[Trial]) -> Trial | None:
    """The first measured trial, without fp32 references, which do not compete. Rewards are relative
    to it if there is no measured baseline. None if nothing was measured."""
    measured = [t for t in trials if t.is_measured and t.purpose is not TrialPurpose.REFERENCE]
    return min(measured, key=lambda t: t.number, default=None)


def reference_of(trials: Sequence[Trial], baseline: Measurement | None) -> Measurement | None:
    """The measurement that the rewards of these trials are relative to; None if nothing was
    measured."""
    first = first_measured(trials)
    reference = baseline or (first.measurement if first is not None else None)
    if reference is None:
        return None
    return with_noise_scale(reference, (t.measurement for t in trials if t.is_measured))


def score(
    trial: Trial, *, reference: Measurement | None, objective: Objective, workload: Workload
) -> Reward:
    """The reward of a trial relative to the reference, or without one relative to itself. Raises
    `ValueError` for a trial without a measurement."""
    if trial.measurement is None:
        raise ValueError(
            f"a trial needs a measurement to be scored, but trial {trial.number} has none"
        )
    return reward(
        trial.measurement,
        baseline=reference,
        objective=objective,
        workload=workload,
        config=trial.config,
    )


def by_reward(trial: Trial) -> tuple[float, int]:
    """Sort key for trials: best reward first, then lower number; unscored trials last."""
    return (-trial.reward.total if trial.reward is not None else math.inf, trial.number)


def rerank(
    trials: Sequence[Trial],
    *,
    objective: Objective,
    workload: Workload,
    baseline: Measurement | None,
) -> list[Trial]:
    """The measured trials with their rewards under `objective`, best first. Without a baseline,
    rewards are relative to the first measured trial."""
    reference = reference_of(trials, baseline)
    scored = [
        replace(t, reward=score(t, reference=reference, objective=objective, workload=workload))
        for t in trials
        if t.is_measured
    ]
    return sorted(scored, key=by_reward)


def tokens_per_s(trial: Trial) -> float:
    """Measured tokens per second of the whole job; nan without a measurement."""
    return trial.measurement.tokens_per_s if trial.measurement is not None else math.nan
