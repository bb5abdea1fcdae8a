"""Goodput: throughput times statistical efficiency, so that a larger batch does not win by speed
alone.

    B      global batch, sequences            B0     global batch of the baseline, sequences
    phi    gradient noise scale, sequences: tr(Sigma) / |G|^2, noise of one sequence's gradient over the signal
    g_b    |gradient over b sequences|^2      small, big   two batch sizes b, in sequences

    efficiency(B) = (phi + B0) / (phi + B)                                      Pollux (OSDI'21), eq. 7, relative to the baseline's batch
    |G|^2         ~ (big * g_big - small * g_small) / (big - small)             McCandlish et al. 2018 (arXiv:1812.06162), eq. A.2
    tr(Sigma)     ~ (g_small - g_big) / (1 / small - 1 / big)                   eq. A.3
    phi           = tr(Sigma) / |G|^2                                           eq. 2.8, the simple noise scale

The two sizes are those of one rank's part and of the whole batch (replicated or ZeRO data parallel,
before and after the gradients are summed), or of the first micro-batch and the whole step where
there is one data-parallel rank. A config that shows neither (a single sequence, cp, ep, a pipeline
without data parallelism, tp under ZeRO 2 and 3) borrows the scale of another trial
(`with_noise_scale`): it belongs to model, data and progress, not to the config. Steps whose
gradient norm spikes (`stability.py`) are left out: one would outweigh all others.

Pollux's formula rests on its assumption that the learning rate follows the batch: multiply it by
sqrt(B / B0) for Adam and by B / B0 for SGD (`learning_rate_factor`), as the native trainer does;
with a learning rate left alone a larger batch gains less than predicted here.

Neglected: phi grows as training goes on, so that the best batch of a late phase is larger than a
short trial says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.spec import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """An estimate of phi with its confidence."""

    value: float
    """sequences; infinite when the signal drowns in the noise"""
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
    """Phi from squared gradient norms at two batch sizes, one pair per step; None with fewer than
    two steps or equal sizes.

    Numerator and denominator are averaged over the steps before they are divided, since each alone
    is unbiased and their ratio is not (appendix A.1). The interval is that of a bootstrap over
    steps: 500 draws from a generator of the given seed.
    """
    lows, highs = np.asarray(small_squared, dtype=float), np.asarray(big_squared, dtype=float)
    if (
        len(lows) != len(highs)
        or len(lows) < 2
        or not 0 < small < big
        or not (np.isfinite(lows).all() and np.isfinite(highs).all())
    ):
        return None
    signal = (big * highs - small * lows) / (big - small)
    noise = (lows - highs) / (1.0 / small - 1.0 / big)
    draws = np.random.default_rng(seed).integers(0, len(lows), size=(500, len(lows)))
    spread = sorted(
        _ratio(n, s)
        for n, s in zip(noise[draws].mean(axis=1), signal[draws].mean(axis=1), strict=True)
    )
    return NoiseScale(value=_ratio(noise.mean(), signal.mean()), low=spread[25], high=spread[474])


def efficiency(batch: float, reference: float, phi: float | None) -> float:
    """Progress per sequence at this global batch relative to the reference batch.

    Without phi the worst case over all phi holds: 1 for smaller batches, reference / batch for
    larger ones.
    """
    if batch == reference:
        return 1.0
    if phi is None:
        return min(1.0, reference / batch)
    return 1.0 if math.isinf(phi) else (phi + reference) / (phi + batch)


def known_noise_scale(measurement: Measurement | None) -> float | None:
    """The phi that a measurement tells; None where it tells none. Where no signal was found phi is
    only known to be large, so that the lower end of its interval counts, if that is finite."""
    phi = measurement.gradient_noise_scale if measurement is not None else None
    if measurement is None or phi is None or math.isnan(phi) or phi < 0:
        return None
    low = (
        measurement.gradient_noise_interval[0] if measurement.gradient_noise_interval else math.inf
    )
    return low if math.isinf(phi) and math.isfinite(low) else phi


def study_noise_scale(measurement: Measurement, baseline: Measurement | None) -> float | None:
    """The phi that a trial is judged by: the baseline's, where it has one, since phi belongs to
    model and data and not to the config."""
    phi = known_noise_scale(baseline)
    return known_noise_scale(measurement) if phi is None else phi


def with_noise_scale(baseline: Measurement, others: Iterable[Measurement | None]) -> Measurement:
    """The baseline; where it tells no noise scale (one sequence at a time, or ways of parallelism
    that hide the parts of a gradient) with that of the first of the others that tells one."""
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
    """By what to multiply the learning rate when the global batch goes from `reference` to `batch`:
    square root for Adam, linear for SGD."""
    return batch / reference if optimizer == "sgd" else math.sqrt(batch / reference)


def _ratio(noise: float, signal: float) -> float:
    return max(float(noise), 0.0) / float(signal) if signal > 0 else math.inf
