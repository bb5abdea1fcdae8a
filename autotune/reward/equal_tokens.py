"""The loss at the same number of tokens: is a config's loss above the other configs' by more than the noise of
the data?

For configs that saw other batches, or the same ones in another order, so that their losses cannot
be compared step by step.

    B        tokens per step                       s        optimizer steps done when a loss was computed, those of warm-up included
    x, r     losses of the config that is judged   n        losses of a curve within the window
             and of another config                 p        progress: the place on r's axis of tokens at which a loss is compared

1. *Where to compare.* p = s * min(B_x, B_r) for x, s * B_r for r: at the same number of tokens, but at equal steps where x has the larger batch. To reach
   a loss takes S = S_min (1 + B_noise / B) steps and E = E_min (1 + B / B_noise) samples (McCandlish et al. 2018, arXiv:1812.06162, eq. 2.7
   and appendix D): a larger batch never needs more steps, a smaller one never more tokens. So a healthy x is expected at or below r at p,
   whatever the two batches are. A larger batch that learns less from a token is no less stable; the objective `goodput` counts that.
2. *The loss at that point.* A line is fitted by least squares to each curve in the later half of the range of p that both cover, and both are read in
   its middle. A line's variance there is v = s^2 (1/n + (p - mean p)^2 / Sxx) (1 + rho) / (1 - rho), with s the standard error of the
   regression on n - 2 degrees of freedom and rho >= 0 the lag-1 autocorrelation of the residuals: logs that print running means hold fewer
   independent losses than lines (Bayley & Hammersley 1946). A bent curve makes the residuals larger, so that less is called significant.
3. *Against which curves.* Those in fp32 where there are any, else all; of these the ones of the nearest batch. The excess is the median of the
   differences, its variance v_x + max(median v_r, (1.4826 * median absolute deviation of the differences)^2): by how much the others differ
   among themselves, but at least by their own noise. It is not divided by the number of others, since one more curve is judged, not their mean.
4. *The noise* is the one-sided 99.5% quantile of Student's t times that standard error: of 200 healthy trials one exceeds it by chance, before
   the tolerance of the score (`parts.py`).

Fewer than `MIN_LOSSES` finite losses of either curve within the window are no evidence, and no
evidence is no comparison.

Assumptions: the learning rate suits the batch, or is the same; where a program logs every few
steps, it does so equally often in every config.
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
"""fewest losses of a curve within the window, so that a line leaves two degrees of freedom"""

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """The losses of a trial, with what is needed to place them."""

    config: ParallelConfig
    """the trial's config"""
    tokens_per_step: int
    """B"""
    first_step: int
    """steps done when the first loss was computed: those of warm-up"""
    losses: tuple[float, ...]
    """one per step"""

    @classmethod
    def of(cls, config: ParallelConfig, measurement: Measurement, warmup_steps: int) -> LossCurve:
        """The curve of a trial that was measured after so many steps of warm-up."""
        return cls(
            config=config,
            tokens_per_step=measurement.tokens_per_step,
            first_step=warmup_steps,
            losses=measurement.losses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Two lines in the middle of their common window."""

    excess: float
    own_variance: float
    other_variance: float
    freedom: int
    loss: float
    tokens: float


def compare_at_equal_tokens(curve: LossCurve, others: Iterable[LossCurve]) -> LossComparison | None:
    """How the curve stands to those of other configs; None where nothing can be compared. The order
    of the others does not matter."""
    pairs = [
        (other, difference)
        for other in others
        if other.config != curve.config and (difference := _difference(curve, other)) is not None
    ]
    found = _nearest(curve, pairs)
    if not found:
        return None
    excesses = np.array([d.excess for d in found])
    excess = float(np.median(excesses))
    spread = 1.4826 * float(np.median(np.abs(excesses - excess)))
    own, theirs = (
        float(np.median([getattr(d, name) for d in found]))
        for name in ("own_variance", "other_variance")
    )
    quantile = t_quantile(min(d.freedom for d in found))
    return LossComparison(
        excess=excess,
        noise=quantile * math.sqrt(own + max(theirs, spread**2)),
        loss=float(np.median([d.loss for d in found])),
        tokens=round(float(np.median([d.tokens for d in found]))),
        curves=len(found),
    )


def _nearest(curve: LossCurve, pairs: Sequence[tuple[LossCurve, _Difference]]) -> list[_Difference]:
    """The differences from fp32 curves, where there are any, and of these from those of the nearest
    batch."""
    exact = [pair for pair in pairs if pair[0].config.precision == "fp32"] or list(pairs)
    distances = [abs(math.log(other.tokens_per_step / curve.tokens_per_step)) for other, _ in exact]
    return [
        difference
        for (_, difference), distance in zip(exact, distances, strict=True)
        if math.isclose(distance, min(distances), abs_tol=1e-9)
    ]


def _difference(x: LossCurve, r: LossCurve) -> _Difference | None:
    if x.tokens_per_step <= 0 or r.tokens_per_step <= 0:
        return None
    (p, mine), (q, theirs) = (
        _placed(x, min(x.tokens_per_step, r.tokens_per_step)),
        _placed(r, r.tokens_per_step),
    )
    if not len(p) or not len(q):
        return None
    low, high = max(p[0], q[0]), min(p[-1], q[-1])
    middle = (low + high) / 2
    inside_p, inside_q = (p >= middle) & (p <= high), (q >= middle) & (q <= high)
    n = min(int(inside_p.sum()), int(inside_q.sum()))
    if n < MIN_LOSSES:
        return None
    at = (middle + high) / 2
    own, own_variance = _line(p[inside_p], mine[inside_p], at)
    other, other_variance = _line(q[inside_q], theirs[inside_q], at)
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


def _placed(curve: LossCurve, tokens_per_step: int) -> tuple[Series, Series]:
    """Progress and loss, where the loss is finite."""
    losses = np.asarray(curve.losses, dtype=float)
    progress = (curve.first_step + np.arange(len(losses), dtype=float)) * tokens_per_step
    known = np.isfinite(losses)
    return progress[known], losses[known]


def _line(p: Series, losses: Series, at: float) -> tuple[float, float]:
    """Value and variance at a place of the line through these losses."""
    centre, mean = float(p.mean()), float(losses.mean())
    sxx = float(((p - centre) ** 2).sum())
    slope = float(((p - centre) * (losses - mean)).sum()) / sxx
    residuals = losses - mean - slope * (p - centre)
    variance = float(residuals @ residuals) / (len(p) - 2) * (1 / len(p) + (at - centre) ** 2 / sxx)
    return mean + slope * (at - centre), variance * steps_per_independent_one(residuals)
