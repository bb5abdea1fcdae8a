"""Stability: how likely it is that a run of days with this config ends well, from what a short trial shows. In [0, 1], by parts.

The parts, what is scored for each and by which limits are declared in `parts.py`.

A part without data is left out. Parts multiply, because a run must survive every hazard; jitter, which costs time but does not end a run,
counts with the exponent 1/4. The correlation is scored only where the two curves differ by more than 1% somewhere: between flat curves it says
nothing.

The loss is held against that of an fp32 reference step by step only where all configs of a study see the same batches in the same order; the
reference then has the same global batch and seed. Elsewhere it is held against that of the other configs at equal tokens, within the noise of
the data (`equal_tokens.py`). The controller knows which (`Study.same_data`) and stores with the measurement what it is held against.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autotune.reward.parts import POINTWISE, SCORED_VALUES, SPIKE_FACTOR, STABILITY_PARTS
from autotune.reward.student_t import t_quantile
from autotune.spec import Failure, FailureKind, Measurement

NEIGHBOURS = 3
"""on either side"""
SAME = 0.01
"""curves that differ by less than this everywhere are the same"""
MIN_STEPS = 4
"""steps below which curves are not judged"""
MOST_NOISE = 0.25
"""of a step's loss, relative; what varies by more is no noise of data"""

Series = NDArray[np.float64]


def stability(measurement: Measurement) -> float:
    """All parts as one number in [0, 1]; 0 when a hard gate is broken."""
    if diverged(measurement) is not None:
        return 0.0
    parts = stability_parts(measurement)
    return math.prod((float(value ** STABILITY_PARTS[name].exponent) for name, value in parts.items()), start=1.0)


def stability_parts(measurement: Measurement) -> dict[str, float]:
    """The parts that could be judged, each in [0, 1]; names and formulas are in `parts.py`."""
    parts = {"finite": _ramp("finite", _nonfinite_share(measurement))}
    losses, norms = _finite(measurement.losses), _finite(measurement.grad_norms)
    if len(losses) >= MIN_STEPS:
        parts["trend"] = _ramp("trend", loss_trend(measurement))
    reference = np.asarray(measurement.reference_losses, dtype=float)
    if (fidelity := _fidelity(np.asarray(measurement.losses, dtype=float), reference)) is not None:
        parts["fidelity"] = fidelity
    elif measurement.loss_comparison is not None:
        parts["equal_tokens"] = _ramp("excess", measurement.loss_comparison.unexplained)
    if len(norms) >= MIN_STEPS:
        parts["spikes"] = _ramp("spikes", len(spikes(measurement)) / len(norms))
    parts["skipped"] = _ramp("skipped", _skipped_share(measurement))
    if measurement.peak_memory_bytes is not None and measurement.memory_capacity_bytes:
        parts["headroom"] = _ramp("headroom", measurement.peak_memory_bytes / measurement.memory_capacity_bytes)
    parts["jitter"] = _ramp("jitter", measurement.step_time_spread)
    return parts


def diverged(measurement: Measurement) -> Failure | None:
    """The hard gates: a non-finite step that loss scaling does not explain, (nearly) every step skipped, a loss that grows by half."""
    if (count := _nonfinite_steps(measurement)) > 0:
        series = np.asarray(measurement.losses or measurement.grad_norms, dtype=float)
        where = next((int(i) for i in np.flatnonzero(~np.isfinite(series))), None)
        message = f"{count} of {_steps(measurement)} steps had a loss or gradient that is not finite"
        return Failure(kind=FailureKind.DIVERGED, message=message, step=where)
    if (share := _skipped_share(measurement)) >= 0.9:
        message = (
            f"loss scaling skipped {share:.0%} of {_steps(measurement)} steps: the gradients overflow at any scale"
        )
        return Failure(kind=FailureKind.DIVERGED, message=message)
    if (
        len(_finite(measurement.losses)) >= MIN_STEPS
        and (trend := loss_trend(measurement)) >= SCORED_VALUES["trend"].bad
    ):
        first, *_, last = _finite(measurement.losses)
        message = f"the loss grew by a factor of {trend:.2f} (from {first:.3f} to {last:.3f}) instead of falling"
        return Failure(kind=FailureKind.DIVERGED, message=message, step=len(measurement.losses) - 1)
    return None


def loss_trend(measurement: Measurement) -> float:
    """Median loss of the last quarter over that of the first quarter; 1 where there are no losses above zero.

    Where the loss grows, only growth beyond the noise counts: the difference of two medians of q normal losses of standard deviation s has the
    standard error s * sqrt(pi / q), and what its one-sided 99.5% quantile of Student's t explains is taken off.
    """
    losses = _finite(measurement.losses)
    quarter = max(1, len(losses) // 4)
    first, last = (float(np.median(part)) if len(part) else 0.0 for part in (losses[:quarter], losses[-quarter:]))
    if first <= 0:
        return 1.0
    if last <= first or len(losses) < MIN_STEPS:
        return last / first
    s = min(_noise(losses), MOST_NOISE * first)
    chance = t_quantile(len(losses) - 2) * s * math.sqrt(math.pi / quarter)
    return max(1.0, (last - chance) / first)


def _noise(losses: Series) -> float:
    """Standard deviation of a loss about its curve, from second differences, which a straight trend leaves at zero (Gasser, Sroka and
    Jennen-Steinmetz 1986); by their median, so that a loss that explodes in its last steps does not pass for noise."""
    curvature = losses[2:] - 2 * losses[1:-1] + losses[:-2]
    return 1.4826 * float(np.median(np.abs(curvature))) / math.sqrt(6)


def spikes(measurement: Measurement) -> list[int]:
    """Steps (from 0, after warm-up) whose gradient norm stands out of its neighbours'. A norm that falls from step to step is none."""
    norms = np.asarray(measurement.grad_norms, dtype=float)
    found = []
    for i, norm in enumerate(norms):
        around = np.concatenate([norms[max(0, i - NEIGHBOURS) : i], norms[i + 1 : i + 1 + NEIGHBOURS]])
        around = around[np.isfinite(around)]
        if np.isfinite(norm) and len(around) >= NEIGHBOURS and norm > SPIKE_FACTOR * float(np.median(around)) > 0:
            found.append(i)
    return found


def _fidelity(losses: Series, reference: Series) -> float | None:
    """How well losses follow the reference, over the steps that both have."""
    n = min(len(losses), len(reference))
    losses, reference = losses[:n], reference[:n]
    both = np.isfinite(losses) & np.isfinite(reference) & (reference > 0)
    losses, reference = losses[both], reference[both]
    if len(losses) < MIN_STEPS:
        return None
    apart = np.abs(losses - reference) / reference
    quarter = max(1, len(losses) // 4)
    last, wanted = float(np.mean(losses[-quarter:])), float(np.mean(reference[-quarter:]))
    scores = [
        _ramp("final_loss", abs(last - wanted) / wanted),
        _ramp("outliers", float(np.mean(apart > POINTWISE))),
    ]
    if float(apart.max()) > SAME:
        scores.append(_ramp("correlation", 1.0 - _correlation(losses, reference)))
    return min(scores)


def _correlation(a: Series, b: Series) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def _steps(measurement: Measurement) -> int:
    return max(len(measurement.step_times_s), len(measurement.losses), 1)


def _nonfinite_steps(measurement: Measurement) -> int:
    if (
        measurement.time_from
    ):  # read from a log: NaN stands for what it does not say, and a logged one has ended the trial
        return measurement.nonfinite_steps
    seen = max(
        int(np.sum(~np.isfinite(np.asarray(s, dtype=float)))) for s in (measurement.losses, measurement.grad_norms)
    )
    return max(measurement.nonfinite_steps, seen - measurement.skipped_steps, 0)


def _nonfinite_share(measurement: Measurement) -> float:
    return min(1.0, _nonfinite_steps(measurement) / _steps(measurement))


def _skipped_share(measurement: Measurement) -> float:
    return min(1.0, measurement.skipped_steps / _steps(measurement))


def _finite(series: tuple[float, ...]) -> Series:
    values = np.asarray(series, dtype=float)
    return np.asarray(values[np.isfinite(values)], dtype=float)


def _ramp(name: str, value: float) -> float:
    good, bad = SCORED_VALUES[name].good, SCORED_VALUES[name].bad
    return float(np.clip((bad - value) / (bad - good), 0.0, 1.0)) if math.isfinite(value) else 0.0
