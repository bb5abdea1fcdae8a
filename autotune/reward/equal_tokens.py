"""Compares the loss of a config with that of other configs at the same number of tokens: is it
higher by more than the noise of the data?

Used if configs see different batches, or the same ones in a different order, so that their losses
cannot be compared step by step.

    B        tokens per step                      s        optimizer steps done when a loss was computed, including warm-up
    x, r     losses of the judged config          n        losses of a curve within the window
             and of another config                p        progress: the position on r's token axis at which losses are compared

1. *Position.* p = s * min(B_x, B_r) for x and s * B_r for r: the same number of tokens, or the same number of steps if x has the larger batch.
   Reaching a loss takes S = S_min (1 + B_noise / B) steps and E = E_min (1 + B / B_noise) samples (McCandlish et al. 2018, arXiv:1812.06162,
   eq. 2.7 and appendix D): a larger batch never needs more steps, a smaller one never more tokens. So the loss of a healthy x at p is expected
   to be at most that of r, for any two batches. A larger batch that learns less per token is not less stable; the objective `goodput` counts that.
2. *Loss at that position.* A line is fitted by least squares to each curve in the later half of their common range of p, and evaluated in the
   middle of that half. Its variance there is v = s^2 (1/n + (p - mean p)^2 / Sxx) (1 + rho) / (1 - rho), with s the standard error of the
   regression with n - 2 degrees of freedom and rho >= 0 the lag-1 autocorrelation of the residuals, because logs that print running means hold
   fewer independent losses than lines (Bayley & Hammersley 1946). A curved loss enlarges the residuals, which makes the test more conservative.
3. *Other curves.* Those in fp32 if there are any, else all; of these the ones with the nearest batch. The excess is the median of the differences,
   with the variance v_x + max(median v_r, (1.4826 * median absolute deviation of the differences)^2): the spread among the others, at least
   their own noise. It is not divided by the number of others, because a single curve is judged and not their mean.
4. *Noise.* The one-sided 99.5% quantile of Student's t times that standard error: one of 200 healthy trials exceeds it by chance, before the
   tolerance of the score (`parts.py`) is applied.

With fewer than `MIN_LOSSES` finite losses of either curve within the window there is no comparison.

Assumptions: the learning rate is adapted to the batch, or the same; a program that logs every few
steps does so equally often in all configs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.reward.autocorrelation import steps_per_independent_one
from autotune.reward.student_t import t_quantile
from autotune.spec import LossComparison, Measurement, ParallelConfig

MIN_LOSSES = 4
"""minimum number of losses of a curve within the window; a line then has two degrees of freedom"""

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The losses of a trial, with the data to compute their progress."""

    config: ParallelConfig
    """the trial's config"""
    tokens_per_step: int
    """B"""
    first_step: int
    """number of warm-up steps before the first loss"""
    losses: tuple[float, ...]
    """one per step"""

    @classmethod
    def of(cls, config: ParallelConfig, measurement: Measurement, warmup_steps: int) -> LossCurve:
        """The curve of a measured trial. `warmup_steps`: steps before the measurement."""
        return cls(
            config=config,
            tokens_per_step=measurement.tokens_per_step,
            first_step=warmup_steps,
            losses=measurement.losses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Difference between the fitted lines of two curves in the middle of their common window."""

    excess: float
    """own loss minus the other's"""
    own_variance: float
    other_variance: float
    freedom: int
    """degrees of freedom of the shorter curve"""
    loss: float
    """the other's loss"""
    tokens: float
    """p"""


def compare_at_equal_tokens(curve: LossCurve, others: Iterable[LossCurve]) -> LossComparison | None:
    """Compare the curve with those of other configs, in any order. Returns None if none of them
    can be compared."""
    pairs = [
        (other, difference)
        for other in others
        if other.config != curve.config and (difference := _difference(curve, other)) is not None
    ]
    differences = _nearest(curve, pairs)
    if not differences:
        return None
    excesses = np.array([d.excess for d in differences])
    excess = float(np.median(excesses))
    spread = 1.4826 * float(np.median(np.abs(excesses - excess)))
    own_variance = float(np.median([d.own_variance for d in differences]))
    other_variance = float(np.median([d.other_variance for d in differences]))
    quantile = t_quantile(min(d.freedom for d in differences))
    return LossComparison(
        excess=excess,
        noise=quantile * math.sqrt(own_variance + max(other_variance, spread**2)),
        loss=float(np.median([d.loss for d in differences])),
        tokens=round(float(np.median([d.tokens for d in differences]))),
        curves=len(differences),
    )


def _nearest(curve: LossCurve, pairs: Sequence[tuple[LossCurve, _Difference]]) -> list[_Difference]:
    """The differences from fp32 curves if there are any, else from all; of these, the ones with the
    nearest batch."""
    preferred = [pair for pair in pairs if pair[0].config.precision == "fp32"] or list(pairs)
    distances = [
        abs(math.log(other.tokens_per_step / curve.tokens_per_step)) for other, _ in preferred
    ]
    return [
        difference
        for (_, difference), distance in zip(preferred, distances, strict=True)
        if math.isclose(distance, min(distances), abs_tol=1e-9)
    ]


def _difference(x: LossCurve, r: LossCurve) -> _Difference | None:
    """Steps 1 and 2 above for two curves; None without enough losses in a common window."""
    if x.tokens_per_step <= 0 or r.tokens_per_step <= 0:
        return None
    p, p_losses = _progress(x, min(x.tokens_per_step, r.tokens_per_step))
    q, q_losses = _progress(r, r.tokens_per_step)
    if not len(p) or not len(q):
        return None
    low, high = max(p[0], q[0]), min(p[-1], q[-1])
    middle = (low + high) / 2
    inside_p, inside_q = (p >= middle) & (p <= high), (q >= middle) & (q <= high)
    n = min(int(inside_p.sum()), int(inside_q.sum()))
    if n < MIN_LOSSES:
        return None
    at = (middle + high) / 2
    own, own_variance = _line(p[inside_p], p_losses[inside_p], at)
    other, other_variance = _line(q[inside_q], q_losses[inside_q], at)
    if other <= 0:
        return None
    return _Difference(
        excess=own - other,
        own_variance=own_variance,
        other_variance=other_variance,
        freedom=n - 2,
        loss=other,
        tokens=at,
    )


def _progress(curve: LossCurve, tokens_per_step: int) -> tuple[Series, Series]:
    """Progress in tokens and loss, for all finite losses."""
    losses = np.asarray(curve.losses, dtype=float)
    progress = (curve.first_step + np.arange(len(losses), dtype=float)) * tokens_per_step
    known = np.isfinite(losses)
    return progress[known], losses[known]


def _line(p: Series, losses: Series, at: float) -> tuple[float, float]:
    """Fit a line to these losses; return its value and variance at position `at`."""
    centre, mean = float(p.mean()), float(losses.mean())
    sxx = float(((p - centre) ** 2).sum())
    slope = float(((p - centre) * (losses - mean)).sum()) / sxx
    residuals = losses - mean - slope * (p - centre)
    variance = float(residuals @ residuals) / (len(p) - 2) * (1 / len(p) + (at - centre) ** 2 / sxx)
    return mean + slope * (at - centre), variance * steps_per_independent_one(residuals)
