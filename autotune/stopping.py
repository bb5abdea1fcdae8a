"""When a trial has been measured enough, and when it can no longer win. Pure functions of the step
times seen so far.

    n steps seen, in any order    t_(1) <= ... <= t_(n) the same sorted    alpha = 1 - confidence

Assumes that steps after warm-up are drawn independently around one median. Means and normal
intervals are useless here: a shared machine has steps ten times slower than the rest. The rules
below use only on which side of a value each step lies, so that no outlier can move them far.

The interval holds at a fixed number of steps. A trial is looked at after every step and stopped
when its interval is narrow, which costs a little coverage: simulated for a precision of 3%, at most
30 steps, 0 to 30% outliers and 1 to 10% noise of a step, the interval held the median in at least
93% of the trials at their stop. At most 2% of all trials ended by calling a median known that was
off by more. Among the trials that call their median known, fewer than 1% are wrong at 1 to 3% noise
with up to 20% outliers, and 2 to 5% at 5% noise. At 10% noise one trial in twenty calls it known,
and one in six of these is wrong. A trial that ends at the step limit claims nothing: at 5% noise
its median was off by more than the precision in 1 to 12% of the cases, at 10% noise in 17 to 41%.
The finals exist for that.

Steps are the fidelity of a trial: a few first, more only where they can change something (racing:
Maron & Moore 1994). A config that is slower than the best by far ends at its first look, one that
is a little slower when enough steps say so, one that may win is measured to the asked precision,
and the finalists once more. No process is restarted for that, and running out of memory shows in
the first step.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.spec import MeasureSpec
from autotune.spec.texts.as_text import format_duration

STAKES = (0.5, 0.9)
"""Fractions of its wealth that the bettor of `evidence_slower` stakes: cautious, and quick when
every step is slower."""
LOSING_ERROR = 0.05
"""Chance at most that a trial whose median is not above the best is ended as a loser by
`evidence_slower`, however often it is looked at."""
FAR = 0.1
"""Slower by more than this is slower by far: what three steps show, if at most a quarter of all
steps are that much slower than their median."""
_LARGEST = math.log(sys.float_info.max)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecision:
    """Whether the trial ends now."""

    stop: bool
    """no further step is needed"""
    reason: str = ""
    """why, in words"""
    stopped_early: bool = False
    """it ends because it can no longer win"""


def median_interval(
    step_times: Sequence[float], confidence: float = 0.95, *, together: int = 1
) -> tuple[float, float]:
    """Confidence interval (low, high) of the median, s: the order statistics t_(k), t_(n+1-k) with
    the largest k that keeps 2 * P(Binomial(n, 1/2) < k) <= alpha (Conover 1999, section 3.2; Hahn
    and Meeker 1991, section 5.2).

    Holds for every distribution, at a number of steps that was fixed beforehand. (0, inf) where n
    is too small: under 6 at 95%. `together`: so many steps have one time, their mean, and count as
    one.
    """
    times = sorted(step_times)
    k = _rank_below(len(times) // together, 1.0 - confidence)
    skipped = (k - 1) * together
    return (times[skipped], times[-1 - skipped]) if k else (0.0, math.inf)


def _rank_below(n: int, alpha: float) -> int:
    """Largest k with 2 * P(Binomial(n, 1/2) < k) <= alpha; 0 when there is none."""
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
    """How strongly the steps speak against "the median is at most `best_s`": a bettor's wealth,
    from 1.

    Each step the bettor stakes a fraction of the wealth on "slower than best_s" at even odds. Under
    the hypothesis the odds are at most fair, so wealth is a supermartingale and ever exceeds 1 /
    alpha with probability alpha at most (Ville 1939; Shafer 2021, "Testing by betting", section 2):
    it may be looked at after every step. The mean over `STAKES` is such a wealth again. Of
    thousands of slower steps it is more than a float holds, and then the greatest that one does.
    `together`: so many steps have one time, their mean, and are one of the bettor's.
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
    """Whether a trial with these steps (s, after warm-up) ends now: slower by far at its first
    look, measured to the asked precision, out of steps, or unable to win. `beat_step_time_s`: the
    slowest that may still win; it allows for the noise between runs of one config. `together`: so
    many steps have one time, their mean.

    At a first look of k independent steps a trial whose median is not above the best is given up
    with probability q^k, where q is the share of steps that are slower than the median by more than
    `FAR`: for k = 3 at most 1.6% for q up to a quarter.
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
    if max(high - middle, middle - low) <= measure.precision * middle:
        share = max(high - middle, middle - low) / middle
        return StopDecision(stop=True, reason=f"median known to within {share:.1%} after {n} steps")
    if (
        beat_step_time_s is not None
        and evidence_slower(step_times, beat_step_time_s, together=together) >= 1 / LOSING_ERROR
    ):
        return StopDecision(
            stop=True,
            reason=f"cannot win: median step {format_duration(middle)} after {n} steps; winning needs {format_duration(beat_step_time_s)} or less",
            stopped_early=True,
        )
    if n >= measure.max_steps:
        return StopDecision(stop=True, reason=f"step limit of {measure.max_steps} reached")
    return StopDecision(stop=False)
