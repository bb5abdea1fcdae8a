"""What a study has used up, and what of its budget, or of the time of the job that it runs in, says
that the search must end.

The last part of wall time and rank-seconds is reserved for the finals, because a winner that is not
re-measured is only a guess. What the finals will take is estimated from the attempts so far; at
most half of the budget is reserved.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec import Budget
from autotune.spec.texts.as_text import format_span, number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Used up so far."""

    trials: int
    """that the searcher asked for; cancelled ones count for nothing"""
    failed: int
    """failed trials of any purpose"""
    wall_s: float
    """since the start, without pauses"""
    gpu_s: float
    """rank-seconds, of running attempts too"""
    refused: int = 0
    """configs that the searcher asked for and that cannot be run at all"""
    left_s: float | None = None
    """until the study's job ends, where it must name its winner before; not used up, but given by
    others"""
    longest: float = 1.0
    """the longest trial so far, in mean ones: the end of a job does not wait for finals that take
    as long"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What the finals are expected to take."""

    wall_s: float = 0.0
    gpu_s: float = 0.0


JOB_SLACK = 1.5
"""by which the expected time of the finals is multiplied where the end of a job, which cannot be
moved, would cut them off"""
REFUSED_PER_TRIAL = 10
"""the search ends when it has asked for so many times `max_trials` configs that cannot be run"""


def search_is_over(spent: Spent, budget: Budget, reserve: Reserve) -> str:
    """Why no further trial may be asked for, in words; empty while one may."""
    if spent.trials >= budget.max_trials:
        return f"the budget of {number_of(budget.max_trials, 'trial')} is spent"
    if spent.failed >= budget.max_failed_trials:
        return (
            f"{number_of(spent.failed, 'trial')} failed, so the budget for failed trials is used up"
        )
    if spent.refused >= REFUSED_PER_TRIAL * budget.max_trials:
        return f"{number_of(spent.refused, 'config')} proposed by the searcher cannot run here"
    if spent.wall_s + min(reserve.wall_s, budget.max_wall_s / 2) >= budget.max_wall_s:
        return f"{format_span(spent.wall_s)} of {format_span(budget.max_wall_s)} of wall time are spent; the rest is reserved for the finals"
    if (
        budget.max_gpu_s is not None
        and spent.gpu_s + min(reserve.gpu_s, budget.max_gpu_s / 2) >= budget.max_gpu_s
    ):
        return f"{spent.gpu_s:.0f} of {budget.max_gpu_s:.0f} rank-seconds are spent; the rest is reserved for the finals"
    if spent.left_s is not None and JOB_SLACK * reserve.wall_s * spent.longest >= spent.left_s:
        return f"this job has {format_span(max(0.0, spent.left_s))} left, reserved for the finals"
    return ""


def everything_is_over(spent: Spent, budget: Budget) -> str:
    """Why even what runs must end now, in words; empty while it may go on."""
    if spent.wall_s >= budget.max_wall_s:
        return f"the wall time of {format_span(budget.max_wall_s)} is spent"
    if budget.max_gpu_s is not None and spent.gpu_s >= budget.max_gpu_s:
        return f"the budget of {budget.max_gpu_s:.0f} rank-seconds is spent"
    return ""
