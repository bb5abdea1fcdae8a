"""The used part of a study's budget, and when the search must end because of the budget or of the
time limit of the study's job.

A part of wall time and rank-seconds is reserved for the finals, because a winner that is not
re-measured may be due to chance. The reserve is estimated from the trials so far, and limited to half
of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec import Budget
from autotune.spec.texts.as_text import format_span, number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The used part of the budget."""

    trials: int
    """number of trials proposed by the searcher, without cancelled ones"""
    failed: int
    """number of failed trials of any purpose"""
    wall_s: float
    """running time without pauses, s"""
    gpu_s: float
    """rank-seconds, including those of running attempts"""
    refused: int = 0
    """number of configs proposed by the searcher that cannot be run here"""
    left_s: float | None = None
    """time until the study's job ends, s; None if unknown, or if the winner need not be decided
    before"""
    longest: float = 1.0
    """duration of the longest trial so far divided by the mean duration, >= 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Expected time and rank-seconds of the finals."""

    wall_s: float = 0.0
    gpu_s: float = 0.0


JOB_SLACK = 1.5
"""safety factor for the expected time of the finals before the end of a job, which is fixed"""
REFUSED_PER_TRIAL = 10
"""the search ends after this multiple of `max_trials` proposed configs that cannot be run"""


def search_is_over(spent: Spent, budget: Budget, reserve: Reserve) -> str:
    """Why the search must end; empty if it may continue."""
    if spent.trials >= budget.max_trials:
        return f"the budget of {number_of(budget.max_trials, 'trial')} is spent"
    if spent.failed >= budget.max_failed_trials:
        return (
            f"{number_of(spent.failed, 'trial')} failed, so the budget for failed trials is used up"
        )
    if spent.refused >= REFUSED_PER_TRIAL * budget.max_trials:
        return f"{number_of(spent.refused, 'config')} proposed by the searcher cannot run here"
    if spent.wall_s + min(reserve.wall_s, budget.max_wall_s / 2) >= budget.max_wall_s:
        return f"{format_span(spent.wall_s)} of the {format_span(budget.max_wall_s)} of wall time have been used; the rest is reserved for the finals"
    if (
        budget.max_gpu_s is not None
        and spent.gpu_s + min(reserve.gpu_s, budget.max_gpu_s / 2) >= budget.max_gpu_s
    ):
        return f"{spent.gpu_s:.0f} of {budget.max_gpu_s:.0f} rank-seconds are spent; the rest is reserved for the finals"
    if spent.left_s is not None and JOB_SLACK * reserve.wall_s * spent.longest >= spent.left_s:
        return f"this job has {format_span(max(0.0, spent.left_s))} left, reserved for the finals"
    return ""


def everything_is_over(spent: Spent, budget: Budget) -> str:
    """Why running trials must end, too; empty if they may continue."""
    if spent.wall_s >= budget.max_wall_s:
        return f"the wall time of {format_span(budget.max_wall_s)} is spent"
    if budget.max_gpu_s is not None and spent.gpu_s >= budget.max_gpu_s:
        return f"the budget of {budget.max_gpu_s:.0f} rank-seconds is spent"
    return ""
