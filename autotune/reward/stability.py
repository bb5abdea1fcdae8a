"""Stability: how likely it is that a run of days with this config ends well, from what a short
trial shows. In [0, 1], by parts.

The parts, what is scored for each and by which limits are declared in `parts.py`; how few steps are
judged fairly is in `evidence.py`.

A part without data is left out. Parts multiply, because a run must survive every hazard; jitter,
which costs time but does not end a run, counts with the exponent 1/4. The correlation is scored
only where the two curves differ by more than 1% somewhere: between flat curves it says nothing.

The loss is held against that of an fp32 reference step by step only where all configs of a study
see the same batches in the same order; the reference then has the same global batch and seed. What
the data do is the reference's too: a loss that grows is compared with how the reference's grew, and
a spike of the gradient norm at a step where the reference's stands out punishes nobody. Elsewhere
the loss is held against that of the other configs at the same number of tokens, within the noise of the data
(`equal_tokens.py`). The controller knows which (`Study.same_data`) and stores with the measurement
what it is held against.
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

NEIGHBOURS = 3
"""on either side"""
SAME = 0.01
"""curves that differ by less than this everywhere are the same"""
MIN_STEPS = 4
"""steps below which curves are not judged"""
BATCH_NOISE = 0.1
"""relative standard deviation of a batch's loss in a healthy run, before any step is seen: of short
sequences and small batches"""
ROUNDING_NOISE = 0.01
"""the same of a loss over that of fp32 on the same batch"""
TIME_NOISE = 0.05
"""the same of a step's time"""
SHARED_SPIKE = SPIKE_FACTOR / 2
"""a spike is the data's where the reference's norm stands out by this factor"""

Series = NDArray[np.float64]


def stability(measurement: Measurement) -> float:
    """All parts as one number in [0, 1]; 0 when a hard gate is broken."""
    if diverged(measurement) is not None:
        return 0.0
    return stability_of(stability_parts(measurement))


def stability_of(parts: Mapping[str, float]) -> float:
    """The parts of a measurement that broke no hard gate as one number."""
    return math.prod(
        (float(value ** STABILITY_PARTS[name].exponent) for name, value in parts.items()), start=1.0
    )


def stability_parts(measurement: Measurement) -> dict[str, float]:
    """The parts that could be judged, each in [0, 1]; names and formulas are in `parts.py`."""
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
    """The hard gates: a non-finite step that loss scaling does not explain, (nearly) every step
    skipped, a loss that grows by half more than the reference's, a loss at the end that is out of
    the reference's reach."""
    if (count := _nonfinite_steps(measurement)) > 0:
        series = np.asarray(measurement.losses or measurement.grad_norms, dtype=float)
        where = next((int(i) for i in np.flatnonzero(~np.isfinite(series))), None)
        message = f"{count} of {_steps(measurement)} steps had a non-finite loss or gradient"
        return Failure(kind=FailureKind.DIVERGED, message=message, step=where)
    if (share := measurement.skipped_share) > 0.9:
        message = f"loss scaling skipped {share:.0%} of {_steps(measurement)} steps, because the gradients overflow at any scale"
        return Failure(kind=FailureKind.DIVERGED, message=message)
    losses, reference = _beside_reference(measurement)
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
    """By which factor the loss grew beyond its noise, from the first part of the run to the last
    (`evidence.growth`); where an fp32 reference is known, the ratio to its losses, in which the
    batches cancel. 1 where there are no losses above zero, or too few."""
    losses, reference = _beside_reference(measurement)
    if len(reference) >= MIN_STEPS:
        return growth(losses / reference, healthy_noise=ROUNDING_NOISE)
    seen = _finite(measurement.losses)
    return growth(seen, healthy_noise=BATCH_NOISE) if len(seen) >= MIN_STEPS else 1.0


def spikes(measurement: Measurement) -> list[int]:
    """Steps (from 0, after warm-up) whose gradient norm stands out of its neighbours', and the
    reference's at the same step does not. A norm that falls from step to step is none."""
    norms = np.asarray(measurement.grad_norms, dtype=float)
    shared = set(
        _standing_out(np.asarray(measurement.reference_grad_norms, dtype=float), SHARED_SPIKE)
    )
    return [i for i in _standing_out(norms, SPIKE_FACTOR) if i not in shared]


def _standing_out(norms: Series, factor: float) -> list[int]:
    finite = norms[np.isfinite(norms)]
    # no median of others is below the least
    if len(finite) <= NEIGHBOURS or finite.max() <= factor * finite.min():
        return []
    found = []
    for i, norm in enumerate(norms):
        around = np.concatenate(
            [norms[max(0, i - NEIGHBOURS) : i], norms[i + 1 : i + 1 + NEIGHBOURS]]
        )
        around = around[np.isfinite(around)]
        if (
            np.isfinite(norm)
            and len(around) >= NEIGHBOURS
            and norm > factor * float(np.median(around)) > 0
        ):
            found.append(i)
    return found


def _beside_reference(measurement: Measurement) -> tuple[Series, Series]:
    """Losses of this run and of the fp32 reference at the steps that both tell."""
    losses, reference = (
        np.asarray(s, dtype=float) for s in (measurement.losses, measurement.reference_losses)
    )
    n = min(len(losses), len(reference))
    losses, reference = losses[:n], reference[:n]
    both = np.isfinite(losses) & np.isfinite(reference) & (reference > 0)
    return losses[both], reference[both]


def _fidelity(measurement: Measurement) -> float | None:
    """How well losses follow the reference, over the steps that both have."""
    losses, reference = _beside_reference(measurement)
    if len(losses) < MIN_STEPS:
        return None
    errors = np.abs(losses - reference) / reference
    q = part_length(len(losses))
    last, wanted = float(np.mean(losses[-q:])), float(np.mean(reference[-q:]))
    scores = [
        _ramp("final_loss", abs(last - wanted) / wanted),
        _ramp("outliers", posterior_share(float((errors > POINTWISE).sum()), len(losses))),
    ]
    if float(errors.max()) > SAME:
        scores.append(_ramp("correlation", 1.0 - posterior_correlation(losses, reference)))
    return min(scores)


def _excess(losses: Series, reference: Series) -> float:
    """By which share of the reference's loss this run's is surely above it at the end: less what
    the one-sided 99.5% quantile of Student's t explains."""
    q = part_length(len(losses))
    ratio = losses / reference
    excess = float(losses[-q:].mean() / reference[-q:].mean()) - 1.0
    s = noise_of(ratio, ROUNDING_NOISE, most=1.0)
    return excess - t_quantile(len(ratio)) * s / math.sqrt(q)


def _steps(measurement: Measurement) -> int:
    return max(len(measurement.step_times_s), len(measurement.losses), 1)


def _nonfinite_steps(measurement: Measurement) -> int:
    if (
        measurement.time_from
    ):  # read from a log: NaN stands for what it does not say, and a logged one has ended the trial
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
