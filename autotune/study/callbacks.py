"""Callbacks of `autotune.tune`: functions of the caller that hear of trials while a study runs.

    on_trial(trial)    a trial has ended: measured, failed or cancelled; the baseline and the final rounds included
    on_best(trial)     this trial is the best so far

They run in the thread of the study, between two steps of its loop, when what they hear of is already stored. An exception of one pauses the study and is raised
as `CallbackError`, with the exception as its cause: nothing measured is lost, and the same call of `tune` goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from autotune.errors import CallbackError
from autotune.spec import Trial
from autotune.study.progress import BestChanged, LoopEvent, OnEvent, TrialEnded

OnTrial = Callable[[Trial], None]


def with_callbacks(on_event: OnEvent | None, *, on_trial: OnTrial | None, on_best: OnTrial | None) -> OnEvent | None:
    """A listener that passes every event to `on_event`, and trials to the callbacks; None where nothing is given."""
    if on_trial is None and on_best is None:
        return on_event

    def hear(event: LoopEvent) -> None:
        if on_event is not None:
            on_event(event)
        if isinstance(event, TrialEnded) and on_trial is not None:
            _call("on_trial", on_trial, event.trial)
        elif isinstance(event, BestChanged) and on_best is not None:
            _call("on_best", on_best, event.trial)

    return hear


def _call(name: str, callback: OnTrial, trial: Trial) -> None:
    try:
        callback(trial)
    except Exception as error:
        raise CallbackError(
            f"{name} raised {type(error).__name__} at trial {trial.number}: {error}",
            remedy="correct the callback and repeat the call: the study is paused and goes on",
        ) from error
