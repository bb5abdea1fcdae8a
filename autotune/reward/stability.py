"""Stability, 0 to 1: how likely a run of several days with this config is to succeed, estimated from
a short trial.

`parts.py` declares the parts with their scored values and limits; `evidence.py` has the statistics
of few steps.

A part without data is left out. Parts are multiplied, because a run must survive every hazard.
Jitter, which costs time but does not end a run, has the exponent 1/4. The correlation is scored
only if the two curves differ by more than 1% somewhere, because that of flat curves is meaningless.

The loss is compared step by step with that of an fp32 reference only if all configs of a study see
the same batches in the same order. The reference then has the same global batch and seed, so
effects of the data appear in it too: the growth of a loss is compared with that of the reference,
and a spike of the gradient norm does not count if the reference has one at the same step.
Otherwise, the loss is compared with that of other configs at the same number of tokens, within the
noise of the data (`equal_tokens.py`). The controller chooses by `Study.same_data`, and stores the
losses to compare with in the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from autotune.reward.evidence import (
    growth,
    noise_of,
    part_length,
    posterior_correlation,
    posterior_sd,
    posterior_share,
    slowing,
)
from autotune.reward.parts import POINTWISE, SCORED_VALUES, SPIKE_FACTOR, STABILITY_PARTS
from autotune.reward.student_t import t_quantile
from autotune.spec import Failure, FailureKind, Measurement

NEIGHBORS = 3
"""number of neighboring steps on either side"""
SAME = 0.01
"""curves that differ by less than this fraction everywhere count as equal"""
MIN_STEPS = 4
"""minimum number of steps to judge a curve"""
BATCH_NOISE = 0.1
"""prior relative standard deviation of the loss between batches, for short sequences and small
batches"""
ROUNDING_NOISE = 0.01
"""prior relative standard deviation of the ratio between a loss and that of fp32 on the same
batch"""
TIME_NOISE = 0.05
"""prior relative standard deviation of the step time"""
SHARED_SPIKE = SPIKE_FACTOR / 2
"""a spike is attributed to the data if the reference's norm exceeds its neighbors by this factor"""

Series = NDArray[np.float64]


def stability(measurement: Measurement) -> float:
    """The product of all parts, 0 to 1; 0 if the trial diverged."""
    if diverged(measurement) is not None:
        return 0.0
    return stability_of(stability_parts(measurement))


def stability_of(parts: Mapping[str, float]) -> float:
    """The product of these parts, each with its exponent."""
    return math.prod(
        (float(value ** STABILITY_PARTS[name].exponent) for name, value in parts.items()), start=1.0
    )


def stability_parts(measurement: Measurement) -> dict[str, float]:
    """The scores of all parts with data, each 0 to 1; names and formulas are in `parts.py`."""
    parts = {"finite": _ramp("finite", _nonfinite_share(measurement))}
    norms = _finite(measurement.grad_norms)
    if len(_finite(measurement.losses)) >= MIN_STEPS:
        parts["trend"] = _ramp("trend", loss_trend(measurement))
    if (fidelity := _fidelity(measurement)) is not None:
        parts["fidelity"] = fidelity
    elif measurement.loss_comparison is not None:
        parts["equal_tokens"] = _ramp("excess", measurement.loss_comparison.unexplained)
    if len(norms) >= MIN_STEPS:
        parts["spikes"] = _ramp("spikes", posterior_share(len(spikes(measurement)), len(norms)))
    parts["skipped"] = _ramp(
        "skipped", posterior_share(measurement.skipped_steps, _steps(measurement))
    )
    occupied = measurement.occupied_memory_bytes
    if occupied is not None and measurement.memory_capacity_bytes:
        parts["headroom"] = _ramp("headroom", occupied / measurement.memory_capacity_bytes)
    times = np.asarray(measurement.step_times_s, dtype=float)
    if len(times) >= MIN_STEPS:
        parts["slowing"] = _ramp("slowing", slowing(times))
    spread = posterior_sd(measurement.step_time_spread, max(0, len(times) - 1), TIME_NOISE)
    parts["jitter"] = _ramp("jitter", spread)
    return parts


def diverged(measurement: Measurement) -> Failure | None:
    """Check the hard gates; return the failure, or None. A trial diverged if a step was non-finite
    without being skipped by loss scaling, more than 90% of the steps were skipped, the loss grew by
    half (relative to the reference, if known), or the final loss is far above the reference's."""
    if (count := _nonfinite_steps(measurement)) > 0:
        series = np.asarray(measurement.losses or measurement.grad_norms, dtype=float)
        where = next((int(i) for i in np.flatnonzero(~np.isfinite(series))), None)
        message = f"{count} of {_steps(measurement)} steps had a non-finite loss or gradient"
        return Failure(kind=FailureKind.DIVERGED, message=message, step=where)
    if (share := measurement.skipped_share) > 0.9:
        message = f"loss scaling skipped {share:.0%} of {_steps(measurement)} steps, because the gradients overflow at any scale"
        return Failure(kind=FailureKind.DIVERGED, message=message)
    losses, reference = _common_losses(measurement)
    is_compared = len(reference) >= MIN_STEPS
    last = len(measurement.losses) - 1
    seen = _finite(measurement.losses)
    if len(seen) >= MIN_STEPS and (trend := loss_trend(measurement)) >= SCORED_VALUES["trend"].bad:
        against = " relative to fp32 on the same batches" if is_compared else " instead of falling"
        message = f"the loss grew by a factor of {trend:.2f} (from {seen[0]:.3f} to {seen[-1]:.3f}){against}"
        return Failure(kind=FailureKind.DIVERGED, message=message, step=last)
    if is_compared and (excess := _excess(losses, reference)) >= SCORED_VALUES["final_loss"].bad:
        q = part_length(len(losses))
        ours, theirs = float(losses[-q:].mean()), float(reference[-q:].mean())
        message = (
            f"the final loss is {ours / theirs - 1:.0%} above the fp32 loss on the same batches ({ours:.3f} instead of {theirs:.3f}), "
            f"{excess:.0%} more than noise explains"
        )
        return Failure(kind=FailureKind.DIVERGED, message=message, step=last)
    return None


def loss_trend(measurement: Measurement) -> float:
    """Growth factor of the loss beyond its noise, from the first to the last part of the run
    (`evidence.growth`). With an fp32 reference, the growth of the ratio to its losses, in which the
    effect of batches cancels. 1 with too few or non-positive losses."""
    losses, reference = _common_losses(measurement)
    if len(reference) >= MIN_STEPS:
        return growth(losses / reference, healthy_noise=ROUNDING_NOISE)
    seen = _finite(measurement.losses)
    return growth(seen, healthy_noise=BATCH_NOISE) if len(seen) >= MIN_STEPS else 1.0


def spikes(measurement: Measurement) -> list[int]:
    """Steps (from 0, after warm-up) with a spike of the gradient norm above its neighbors, unless
    the reference's norm is high at the same step. A steadily falling norm has no spikes."""
    norms = np.asarray(measurement.grad_norms, dtype=float)
    reference = np.asarray(measurement.reference_grad_norms, dtype=float)
    shared = set(_above_neighbors(reference, SHARED_SPIKE))
    return [i for i in _above_neighbors(norms, SPIKE_FACTOR) if i not in shared]


def _above_neighbors(norms: Series, factor: float) -> list[int]:
    finite = norms[np.isfinite(norms)]
    # a shortcut: no median is below the minimum
    if len(finite) <= NEIGHBORS or finite.max() <= factor * finite.min():
        return []
    steps = []
    for i, norm in enumerate(norms):
        around = np.concatenate(
            [norms[max(0, i - NEIGHBORS) : i], norms[i + 1 : i + 1 + NEIGHBORS]]
        )
        around = around[np.isfinite(around)]
        if (
            np.isfinite(norm)
            and len(around) >= NEIGHBORS
            and norm > factor * float(np.median(around)) > 0
        ):
            steps.append(i)
    return steps


def _common_losses(measurement: Measurement) -> tuple[Series, Series]:
    """Losses of this run and of the fp32 reference at the steps where both are finite."""
    losses, reference = (
        np.asarray(s, dtype=float) for s in (measurement.losses, measurement.reference_losses)
    )
    n = min(len(losses), len(reference))
    losses, reference = losses[:n], reference[:n]
    both = np.isfinite(losses) & np.isfinite(reference) & (reference > 0)
    return losses[both], reference[both]


def _fidelity(measurement: Measurement) -> float | None:
    """Score of the agreement with the reference's losses; None with fewer than `MIN_STEPS` common
    steps."""
    losses, reference = _common_losses(measurement)
    if len(losses) < MIN_STEPS:
        return None
    errors = np.abs(losses - reference) / reference
    q = part_length(len(losses))
    last, expected = float(np.mean(losses[-q:])), float(np.mean(reference[-q:]))
    scores = [
        _ramp("final_loss", abs(last - expected) / expected),
        _ramp("outliers", posterior_share(float((errors > POINTWISE).sum()), len(losses))),
    ]
    if float(errors.max()) > SAME:
        scores.append(_ramp("correlation", 1.0 - posterior_correlation(losses, reference)))
    return min(scores)


def _excess(losses: Series, reference: Series) -> float:
    """Relative difference of the final loss to the reference's, minus the noise (the one-sided 99.5%
    quantile of Student's t)."""
    q = part_length(len(losses))
    ratio = losses / reference
    excess = float(losses[-q:].mean() / reference[-q:].mean()) - 1.0
    s = noise_of(ratio, ROUNDING_NOISE, most=1.0)
    return excess - t_quantile(len(ratio)) * s / math.sqrt(q)


def _steps(measurement: Measurement) -> int:
    return max(len(measurement.step_times_s), len(measurement.losses), 1)


def _nonfinite_steps(measurement: Measurement) -> int:
    # in a measurement read from a log, NaN means a missing value; a logged NaN ends the trial
    if measurement.time_from:
        return measurement.nonfinite_steps
    seen = max(
        int(np.sum(~np.isfinite(np.asarray(s, dtype=float))))
        for s in (measurement.losses, measurement.grad_norms)
    )
    return max(measurement.nonfinite_steps, seen - measurement.skipped_steps, 0)


def _nonfinite_share(measurement: Measurement) -> float:
    return min(1.0, _nonfinite_steps(measurement) / _steps(measurement))


def _finite(series: tuple[float, ...]) -> Series:
    values = np.asarray(series, dtype=float)
    return np.asarray(values[np.isfinite(values)], dtype=float)


def _ramp(name: str, value: float) -> float:
    good, bad = SCORED_VALUES[name].good, SCORED_VALUES[name].bad
    return float(np.clip((bad - value) / (bad - good), 0.0, 1.0)) if math.isfinite(value) else 0.0
