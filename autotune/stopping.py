"""Stop rules of a trial: it ends when its median step time is known precisely enough, or when it can
no longer win. Pure functions of the step times so far.

    n step times, in any order    t_(1) <= ... <= t_(n) sorted    alpha = 1 - confidence

The steps after warm-up are assumed to be independent with the same median. Means and normal
intervals are not used, because on a shared machine some steps take ten times as long as the rest.
The rules only use whether a step is above or below a value, so that outliers have little effect.

The interval is exact for a fixed number of steps. Stopping as soon as it is narrow costs a little
coverage: in simulations with a precision of 3%, at most 30 steps, 0 to 30% outliers and 1 to 10%
noise per step, the interval contained the median in at least 93% of the trials when they stopped.
At most 2% of all trials stopped with a median that was off by more than the precision. Of the
trials that stopped because their median was known, fewer than 1% were wrong at 1 to 3% noise with up
to 20% outliers, and 2 to 5% at 5% noise. At 10% noise, one trial in twenty stopped for this reason,
and one in six of these was wrong. A trial that ends at the step limit makes no claim: at 5% noise
its median was off by more than the precision in 1 to 12% of the cases, at 10% noise in 17 to 41%.
The finals re-measure such trials.

The number of steps is the fidelity of a trial: a few at first, more only if they can change the
outcome (racing: Maron & Moore 1994). A config that is much slower than the best ends at its first
look; one that is a little slower ends when there is enough evidence; one that may win is measured to
the requested precision, and the finalists are measured again. This needs no restart of processes,
and running out of memory shows in the first step.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.spec import MeasureSpec
from autotune.spec.texts.as_text import format_duration, number_of

STAKES = (0.5, 0.9)
"""fractions of its wealth that the bettor of `evidence_slower` stakes: a cautious one, and one that
decides quickly if every step is slower"""
LOSING_ERROR = 0.05
"""maximum probability that `evidence_slower` ends a trial whose median is not above the best, for
any number of looks"""
FAR = 0.1
"""relative difference above which a trial is much slower; three steps show that, if at most a
quarter of all steps exceed their median by more"""
_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecision:
    """Whether the trial ends now."""

    stop: bool
    """whether the trial ends"""
    reason: str = ""
    """the reason, as text"""
    stopped_early: bool = False
    """whether it ends because it can no longer win"""


def median_interval(
    step_times: Sequence[float], confidence: float = 0.95, *, together: int = 1
) -> tuple[float, float]:
    """Confidence interval (low, high) of the median, seconds: the order statistics t_(k) and
    t_(n+1-k) with the largest k for which 2 * P(Binomial(n, 1/2) < k) <= alpha (Conover 1999,
    section 3.2; Hahn and Meeker 1991, section 5.2).

    It holds for every distribution, if the number of steps was fixed in advance. Returns (0, inf)
    if n is too small, below 6 at 95%. `together`: number of consecutive steps that share one time,
    their mean, and count as one.
    """
    times = sorted(step_times)
    k = _rank_below(len(times) // together, 1.0 - confidence)
    index = (k - 1) * together
    return (times[index], times[-1 - index]) if k else (0.0, math.inf)


def _rank_below(n: int, alpha: float) -> int:
    """The largest k with 2 * P(Binomial(n, 1/2) < k) <= alpha; 0 if there is none."""
    k, tail = 0, 0.0
    while 2 * k < n:
        tail += math.exp(
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
        )
        if 2 * tail > alpha:
            break
        k += 1
    return k


def evidence_slower(step_times: Sequence[float], best_s: float, *, together: int = 1) -> float:
    """Evidence of the steps against the hypothesis that the median is at most `best_s`: the wealth
    of a bettor who starts with 1.

    In each step, the bettor stakes a fraction of the wealth on "slower than best_s" at even odds.
    If the hypothesis is true, the odds are at most fair, so the wealth is a supermartingale and
    exceeds 1 / alpha at any time with a probability of at most alpha (Ville 1939; Shafer 2021,
    "Testing by betting", section 2). So it can be checked after every step. The mean over `STAKES`
    is such a wealth too. It is limited to the largest float. `together`: number of consecutive
    steps that share one time, their mean, and count as one.
    """
    slower = sum(t > best_s for t in step_times) / together
    rest = len(step_times) / together - slower
    logs = [slower * math.log1p(s) + rest * math.log1p(-s) for s in STAKES]
    return sum(math.exp(min(log, _LARGEST)) / len(STAKES) for log in logs)


def trial_decision(
    step_times: Sequence[float],
    measure: MeasureSpec,
    beat_step_time_s: float | None,
    *,
    together: int = 1,
) -> StopDecision:
    """Whether a trial with these steps (seconds, after warm-up) ends now: it is much slower at its
    first look, measured to the requested precision, at the step limit, or unable to win.
    `beat_step_time_s`: the slowest step time that may still win, including the noise between runs
    of a config. `together`: number of consecutive steps that share one time, their mean.

    At a first look after k independent steps, a trial whose median is not above the best is ended
    with probability q^k, where q is the share of steps slower than the median by more than `FAR`:
    for k = 3 at most 1.6%, if q is at most a quarter.
    """
    n = len(step_times)
    is_look = n > 0 and n == measure.first_look
    if is_look and beat_step_time_s is not None and min(step_times) > (1 + FAR) * beat_step_time_s:
        reason = f"cannot win: the first {n} steps took more than {format_duration((1 + FAR) * beat_step_time_s)} each; winning needs {format_duration(beat_step_time_s)} or less"
        return StopDecision(stop=True, reason=reason, stopped_early=True)
    if n < measure.min_steps:
        return StopDecision(stop=False)
    low, high = median_interval(step_times, together=together)
    middle = statistics.median(step_times)
    half_width = max(high - middle, middle - low)
    if half_width <= measure.precision * middle:
        reason = f"median known to within {half_width / middle:.1%} after {number_of(n, 'step')}"
        return StopDecision(stop=True, reason=reason)
    if (
        beat_step_time_s is not None
        and evidence_slower(step_times, beat_step_time_s, together=together) >= 1 / LOSING_ERROR
    ):
        return StopDecision(
            stop=True,
            reason=f"cannot win: median step {format_duration(middle)} after {number_of(n, 'step')}; winning needs {format_duration(beat_step_time_s)} or less",
            stopped_early=True,
        )
    if n >= measure.max_steps:
        return StopDecision(stop=True, reason=f"step limit of {measure.max_steps} reached")
    return StopDecision(stop=False)
