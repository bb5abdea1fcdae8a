"""Events and commands of the controller, as plain values.

Events come from the runner (`autotune.ports.RunnerEvent`), the clock and users. The facts among the
commands that result from one event are stored in one transaction (`autotune.ports.decision`); then
the loop carries out the commands in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptQueued,
    AttemptStarted,
    CloseAttempt,
    EndTrial,
    KeepSteps,
    KeepTrial,
    NodePlace,
    StartAttempt,
    StepsReported,
)
from autotune.reward import MachineChange
from autotune.spec import StudyStatus


class StudyPhase(StrEnum):
    """What a study is doing."""

    BASELINE = "baseline"
    """the baseline is measured, and the fp32 reference for its losses if one is needed"""
    SEARCH = "search"
    """the searcher proposes configs, the enqueued ones first"""
    FINALS = "finals"
    """finalists and baseline are re-measured alternately"""
    ENDED = "ended"
    """nothing more will be started"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The current time."""

    now_s: float
    """time of a monotonic clock, s; only differences matter"""
    left_s: float | None = None
    """seconds until the scheduler ends the study's job; None if unknown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAdopted:
    """An attempt that an earlier controller of the study launched continues under this one. Comes
    before the first `Tick`."""

    id: AttemptId


PAUSED_ON_REQUEST = "paused on request"
"""message of a study paused by `PauseAsked`"""
STOPPED_ON_REQUEST = "stopped on request"
"""message of a study ended by `StopAsked`"""
CANCELLED_ON_REQUEST = "cancelled on request"
"""message of a study ended by `CancelAsked`"""
TIME_IS_OVER = "its job's time limit has been reached"
"""message of a study paused before the scheduler ends its job"""
JOB_ENDS = "its job is being ended early"
"""message of a study paused because the scheduler ended the job's steps first, as in a preemption"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked:
    """Start nothing new; pause when the running trials have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked:
    """Withdraw a pause that has not taken effect yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Let the running trials finish, then end the study with the results so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """Kill the running trials and end the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptAsked:
    """Kill the running trials and pause, so that the study can continue later: Ctrl-C, or a service
    that shuts down."""

    reason: str = "interrupted"
    """the study's message"""


Event = (
    Tick
    | AttemptAdopted
    | AttemptQueued
    | AttemptStarted
    | StepsReported
    | AttemptEnded
    | PauseAsked
    | ResumeAsked
    | StopAsked
    | CancelAsked
    | InterruptAsked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteQueued:
    """An attempt waits for ranks that are in use; emitted once per attempt."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteStarted:
    """An attempt's ranks are placed."""

    number: int
    attempt: int
    places: tuple[NodePlace, ...] = ()
    """nodes of the ranks; empty if the runner does not know them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAttempt:
    """Cancel an attempt; its `AttemptEnded` follows later."""

    id: AttemptId
    reason: str
    """why, for the history"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRest:
    """The request to pause or end the study has changed. Stored because later decisions depend on
    it."""

    status: StudyStatus | None
    """the requested status; None: the request was withdrawn"""
    reason: str
    """why"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLate:
    """A report arrived for an attempt that had been given up: it is stored and changes nothing."""

    event: AttemptEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteMachineChange:
    """Repeated runs of the baseline showed that the machine's speed changed."""

    change: MachineChange
    again: tuple[int, ...]
    """numbers of the trials that may still win and will be re-measured"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPhase:
    """The study enters another phase."""

    phase: StudyPhase
    message: str
    """why"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStudy:
    """The study has paused or ended, and nothing is running. A PAUSED study can continue later; any
    other status is final."""

    status: StudyStatus
    message: str
    """why"""
    baseline: int | None = None
    """number of the baseline trial; None if it was not measured"""
    best: int | None = None
    """number of the winner's trial; None without a winner"""
    speedup: float | None = None
    """tokens/s of the winner divided by those of the baseline; None without a baseline"""
    result: Mapping[str, Any] = field(default_factory=dict)
    """phase, stop reason, finals and notes, as plain values"""


Command = (
    KeepTrial
    | StartAttempt
    | NoteQueued
    | NoteRest
    | NoteStarted
    | KeepSteps
    | CancelAttempt
    | CloseAttempt
    | EndTrial
    | KeepLate
    | NoteMachineChange
    | EnterPhase
    | EndStudy
)


def cause(event: Event) -> dict[str, Any]:
    """The event as plain values for the history, without the data that its facts contain."""
    named = {"event": type(event).__name__}
    match event:
        case (
            AttemptAdopted() | AttemptQueued() | AttemptStarted() | StepsReported() | AttemptEnded()
        ):
            return {**named, "number": event.id.trial, "attempt": event.id.attempt}
        case InterruptAsked(reason=reason):
            return {**named, "reason": reason}
        case Tick(left_s=left_s) if left_s is not None:
            return {**named, "left_s": left_s}
    return named
