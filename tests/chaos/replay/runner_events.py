"""The event that caused a decision, made again from what was kept of it.

What the runner reported is an input: the measurement is that of the trial, without what the
controller added to it, and a failure is that of the trial or of the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import StoreCorruptError
from autotune.ports import AttemptEnded, AttemptId, AttemptQueued, AttemptStarted, StepsReported
from autotune.spec import Failure, Measurement, Trial, TrialStatus
from autotune.study.controller import (
    AttemptAdopted,
    CancelAsked,
    Event,
    InterruptAsked,
    PauseAsked,
    ResumeAsked,
    StopAsked,
    Tick,
)
from autotune.study.controller.attempts import PROGRAM_DEFAULTS
from tests.chaos.replay.history import Decided

WISHES: Mapping[str, Event] = {
    type(e).__name__: e for e in (PauseAsked(), ResumeAsked(), StopAsked(), CancelAsked())
}
"""events that people cause, by name"""
_OF_AN_ATTEMPT: Mapping[str, Callable[[AttemptId], Event]] = {
    "AttemptAdopted": lambda of: AttemptAdopted(id=of),
    "AttemptStarted": lambda of: AttemptStarted(id=of),
    "StepsReported": lambda of: StepsReported(
        id=of, first_step=0, step_times_s=(), losses=(), grad_norms=()
    ),
}


def event_of(study_id: str, decided: Decided, trial: Callable[[int], Trial]) -> Event:
    """The event that caused the decision. `trial`: the trial of a number as it is now. Raises
    `StoreCorruptError` for an event that no controller knows."""
    cause = decided.cause
    name = str(cause["event"])
    if name == "Tick":
        return Tick(now_s=decided.elapsed_s, left_s=cause.get("left_s"))
    if name in WISHES:
        return WISHES[name]
    if name == "InterruptAsked":
        return InterruptAsked(reason=str(cause["reason"]))
    attempt = AttemptId(study_id, int(cause["number"]), int(cause["attempt"]))
    if name == "AttemptEnded":
        return _ended(attempt, decided, trial)
    if name == "AttemptQueued":
        reason = next((str(line.data["reason"]) for line in decided.of("attempt.queued")), "")
        return AttemptQueued(id=attempt, reason=reason)
    if name not in _OF_AN_ATTEMPT:
        raise StoreCorruptError(f"event {decided.event}: no controller is told of {name!r}")
    return _OF_AN_ATTEMPT[name](attempt)


def _ended(attempt: AttemptId, decided: Decided, trial: Callable[[int], Trial]) -> AttemptEnded:
    """The report of an attempt's end: of its trial's end, of a retry, or a late one."""
    number = attempt[1]
    for line in decided.lines:
        if line.data.get("number") != number:
            continue
        if line.kind == "trial.ended":
            return _of_trial(attempt, trial(number))
        if line.kind == "attempt.ended":
            failure = Failure.from_dict(line.data["failure"])
            return (
                AttemptEnded(id=attempt, cancelled=True)
                if failure == PROGRAM_DEFAULTS
                else _failed(attempt, failure)
            )
        if line.kind == "trial.late":
            return _of_trial(attempt, Trial.from_dict(line.data["trial"]))
    return AttemptEnded(id=attempt, cancelled=True)


def _of_trial(attempt: AttemptId, trial: Trial) -> AttemptEnded:
    if trial.status is TrialStatus.CANCELLED or trial.failure == PROGRAM_DEFAULTS:
        return AttemptEnded(id=attempt, cancelled=True)
    measurement = _as_reported(trial.measurement)
    if trial.failure is not None:
        return _failed(attempt, trial.failure, measurement)
    stopped = trial.reason if trial.status is TrialStatus.STOPPED else ""
    return AttemptEnded(id=attempt, measurement=measurement, stopped=stopped)


def _failed(
    attempt: AttemptId, failure: Failure, measurement: Measurement | None = None
) -> AttemptEnded:
    return AttemptEnded(id=attempt, measurement=measurement, failure=failure)


def _as_reported(measurement: Measurement | None) -> Measurement | None:
    """Without what a controller adds: what losses and gradients are held against."""
    if measurement is None:
        return None
    return replace(measurement, reference_losses=(), reference_grad_norms=(), loss_comparison=None)


def reason_of(cause: Mapping[str, Any]) -> str:
    """The cause in words."""
    of = f" of trial {cause['number']}" if "number" in cause else ""
    return f"{cause['event']}{of}"
