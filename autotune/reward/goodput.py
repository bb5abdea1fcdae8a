"""Goodput: throughput times statistical efficiency, so that a larger batch does not win by speed
alone.

    B      global batch, sequences            B0     global batch of the baseline, sequences
    phi    gradient noise scale, sequences: tr(Sigma) / |G|^2, noise of one sequence's gradient over the signal
    g_b    |gradient over b sequences|^2      small, big   two batch sizes b, in sequences

    efficiency(B) = (phi + B0) / (phi + B)                                      Pollux (OSDI'21), eq. 7, relative to the baseline's batch
    |G|^2         ~ (big * g_big - small * g_small) / (big - small)             McCandlish et al. 2018 (arXiv:1812.06162), eq. A.2
    tr(Sigma)     ~ (g_small - g_big) / (1 / small - 1 / big)                   eq. A.3
    phi           = tr(Sigma) / |G|^2                                           eq. 2.8, the simple noise scale

With data parallelism (replicated or ZeRO), the two sizes are one rank's part and the whole batch,
that is, the gradients before and after they are summed. With one data-parallel rank, they are the
first micro-batch and the whole step. A config that provides neither (a single sequence, cp, ep, a
pipeline without data parallelism, tp with ZeRO 2 or 3) uses the scale of another trial
(`with_noise_scale`), because it depends on model, data and progress, not on the config. Steps with
a spike of the gradient norm (`stability.py`) are excluded: one would outweigh all others.

Pollux's formula assumes that the learning rate is adapted to the batch: multiplied by sqrt(B / B0)
for Adam and by B / B0 for SGD (`learning_rate_factor`), as the native trainer does. With an
unchanged learning rate, a larger batch gains less than predicted here.

Not modeled: phi grows during training, so the best batch of a late phase is larger than a short
trial shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.spec import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """An estimate of phi with its 90% interval."""

    value: float
    """sequences; infinite if no signal was found in the noise"""
    low: float
    """lower end of the 90% interval, sequences"""
    high: float
    """upper end of the 90% interval, sequences"""


def noise_scale(
    small_squared: Sequence[float],
    big_squared: Sequence[float],
    *,
    small: int,
    big: int,
    seed: int = 0,
) -> NoiseScale | None:
    """Estimate phi from squared gradient norms at two batch sizes, one pair per step. Returns None
    with fewer than two steps, non-finite norms, or sizes that are not increasing.

    Numerator and denominator are averaged over the steps before the division, because each of them
    is unbiased, but their ratio is not (appendix A.1). The interval comes from a bootstrap over
    steps with 500 draws. `small`, `big`: batch sizes, sequences; `seed`: of the draws.
    """
    g_small, g_big = np.asarray(small_squared, dtype=float), np.asarray(big_squared, dtype=float)
    if (
        len(g_small) != len(g_big)
        or len(g_small) < 2
        or not 0 < small < big
        or not (np.isfinite(g_small).all() and np.isfinite(g_big).all())
    ):
        return None
    signal = (big * g_big - small * g_small) / (big - small)
    noise = (g_small - g_big) / (1.0 / small - 1.0 / big)
    draws = np.random.default_rng(seed).integers(0, len(g_small), size=(500, len(g_small)))
    drawn = sorted(
        _ratio(n, s)
        for n, s in zip(noise[draws].mean(axis=1), signal[draws].mean(axis=1), strict=True)
    )
    return NoiseScale(value=_ratio(noise.mean(), signal.mean()), low=drawn[25], high=drawn[474])


def efficiency(batch: float, reference: float, phi: float | None) -> float:
    """Progress per sequence at this global batch, relative to the reference batch.

    If phi is unknown, the worst case over all phi is returned: 1 for smaller batches, reference /
    batch for larger ones.
    """
    if batch == reference:
        return 1.0
    if phi is None:
        return min(1.0, reference / batch)
    return 1.0 if math.isinf(phi) else (phi + reference) / (phi + batch)


def known_noise_scale(measurement: Measurement | None) -> float | None:
    """The phi of a measurement, or None if unknown. If no signal was found, phi is only known to be
    large, so the lower end of its interval is returned, if finite."""
    phi = measurement.gradient_noise_scale if measurement is not None else None
    if measurement is None or phi is None or math.isnan(phi) or phi < 0:
        return None
    low = (
        measurement.gradient_noise_interval[0] if measurement.gradient_noise_interval else math.inf
    )
    return low if math.isinf(phi) and math.isfinite(low) else phi


def study_noise_scale(measurement: Measurement, baseline: Measurement | None) -> float | None:
    """The phi to score a trial with: the baseline's if known, because phi depends on model and data
    and not on the config; else the trial's own."""
    phi = known_noise_scale(baseline)
    return known_noise_scale(measurement) if phi is None else phi


def with_noise_scale(baseline: Measurement, others: Iterable[Measurement | None]) -> Measurement:
    """The baseline's measurement. If its noise scale is unknown (a batch of one sequence, or
    parallelism that hides the parts of a gradient), the first known one of the others is added."""
    if known_noise_scale(baseline) is not None:
        return baseline
    for other in others:
        if other is not None and known_noise_scale(other) is not None:
            return replace(
                baseline,
                gradient_noise_scale=other.gradient_noise_scale,
                gradient_noise_interval=other.gradient_noise_interval,
            )
    return baseline


def learning_rate_factor(batch: float, reference: float, optimizer: str) -> float:
    """Factor for the learning rate when the global batch changes from `reference` to `batch`: the
    ratio for SGD, its square root for Adam."""
    return batch / reference if optimizer == "sgd" else math.sqrt(batch / reference)


def _ratio(noise: float, signal: float) -> float:
    return max(float(noise), 0.0) / float(signal) if signal > 0 else math.inf
