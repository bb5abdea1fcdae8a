"""The reasons why configs with a higher speed or reward than the winner do not win. They are shown
in the rows of their trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.results.result import Result
from autotune.reward import competes, counted_once, tokens_per_s
from autotune.spec import Trial, TrialPurpose, TrialStatus
from autotune.study.controller import failed_in_finals
from autotune.study.controller.finals.finalists import (
    ROUNDING,
    first_finalists,
    next_final,
    total_of,
)


def with_standing(result: Result) -> Result:
    """Return the result with `below` set, and its reasons added to those of the trials in
    `shown`."""
    below = _below(result)
    if not below:
        return result
    shown = tuple(
        replace(t, reason="; ".join(filter(None, (below[t.number], t.reason))))
        if t.number in below
        else t
        for t in result.shown
    )
    return replace(result, below=below, shown=shown)


def _below(result: Result) -> Mapping[int, str]:
    """Return, by number of each trial with a higher reward or more tokens/s than the winner, why it
    is not the winner. Final runs are left out, because each has the figure of its round, not its
    config's."""
    best = result.best
    if best is None or result.record.study.at_hand is not None:
        return {}
    rivals = [
        t
        for t in result.shown
        if t.is_measured
        and t.config != best.config
        and t.purpose not in (TrialPurpose.FINAL, TrialPurpose.PROXY)
    ]
    speed = tokens_per_s(best) * (1 + ROUNDING)
    return {
        t.number: why_below(t, result, than=total_of(best))
        for t in rivals
        if total_of(t) > total_of(best) + ROUNDING or tokens_per_s(t) > speed
    }


def why_below(trial: Trial, result: Result, *, than: float) -> str:
    """Return the reason why a trial ranks below another one whose reward is `than`."""
    if trial.config in failed_in_finals(result.trials):
        return "failed when it was re-measured"
    if not competes(trial, result.record.study):
        return "a reference outside the space"
    if trial.number not in {t.number for t in counted_once(result.shown)}:
        return "superseded by a re-measurement"
    if result.too_noisy is not None:
        return "too noisy to tell"
    if trial.number in result.tied_with:
        return "tied with the best"
    if total_of(trial) <= than + ROUNDING:
        return "its reward is lower"
    if trial.number in {t.number for t in result.confirmed}:
        return "re-measured: not significantly faster than the baseline"
    once = (
        "measured once" if trial.status is TrialStatus.COMPLETED else "ended early, measured once"
    )
    if not result.final_rounds or result.baseline is None:
        return once
    if not result.record.status.is_terminal:
        return f"{once} so far"
    study = result.record.study
    if next_final(first_finalists(result.trials, study), result.trials, study) is not None:
        return f"{once}: the study ended first"
    return f"{once}: no runs were left for the finals"
