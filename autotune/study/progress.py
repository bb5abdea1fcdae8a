"""Events of a running study for the live view, logs and metrics, in chronological order.

Callbacks of `autotune.tune`: your functions, called with trials while a study runs.

    on_trial(trial)    a trial has ended: measured, failed or cancelled, including the baseline and the final rounds
    on_best(trial)     this trial is the best so far

They run in the study's thread, between two rounds of its loop, after the event was stored. An
exception in a callback pauses the study and is raised as `CallbackError`, with the exception as its
cause. No measurement is lost, and the same call of `tune` continues the study.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.errors import CallbackError
from autotune.ports import StepsReported, StudyRecord
from autotune.spec import Failure, Trial
from autotune.study.controller import StudyPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOpened:
    """The loop begins; `past` holds the trials of earlier controllers."""

    record: StudyRecord
    past: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered:
    """The study enters a new phase; `message` says why."""

    phase: StudyPhase
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAsked:
    """A trial was created and stored; waiting for ranks."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """An attempt's ranks are placed."""

    number: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStepped:
    """A trial reported steps."""

    number: int
    steps: StepsReported


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRetried:
    """An attempt was lost; another will be launched."""

    number: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial has ended."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class BestChanged:
    """This trial is the best so far."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice, e.g. that the database is unavailable."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRested:
    """The loop has ended: the study is over, or paused."""

    record: StudyRecord


LoopEvent = (
    StudyOpened
    | PhaseEntered
    | TrialAsked
    | TrialStarted
    | TrialStepped
    | TrialRetried
    | TrialEnded
    | BestChanged
    | Notice
    | StudyRested
)
OnEvent = Callable[[LoopEvent], None]


OnTrial = Callable[[Trial], None]


def with_callbacks(
    on_event: OnEvent | None, *, on_trial: OnTrial | None, on_best: OnTrial | None
) -> OnEvent | None:
    """A listener that passes every event to `on_event`, and trials to the callbacks; None if none
    is given."""
    if on_trial is None and on_best is None:
        return on_event

    def dispatch(event: LoopEvent) -> None:
        if on_event is not None:
            on_event(event)
        if isinstance(event, TrialEnded) and on_trial is not None:
            _call("on_trial", on_trial, event.trial)
        elif isinstance(event, BestChanged) and on_best is not None:
            _call("on_best", on_best, event.trial)

    return dispatch


def _call(name: str, callback: OnTrial, trial: Trial) -> None:
    try:
        callback(trial)
    except Exception as error:
        raise CallbackError(
            f"{name} raised {type(error).__name__} at trial {trial.number}: {error}",
            remedy="fix the callback and repeat the call; the paused study will continue",
        ) from error
