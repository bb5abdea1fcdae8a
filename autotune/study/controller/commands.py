"""Events and commands of the controller, as plain values.

Events come from the runner (`autotune.ports.RunnerEvent`), the clock and people. The facts among
the commands that follow from one event are stored in one transaction (`autotune.ports.decision`);
then the loop carries out the commands in their order.
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
    """the baseline is measured, and the reference of stability where one is wanted"""
    SEARCH = "search"
    """the searcher proposes: the user's guesses first"""
    FINALS = "finals"
    """finalists and baseline are re-measured, in turn"""
    ENDED = "ended"
    """nothing more will be started"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time goes on."""

    now_s: float
    """seconds on a clock that never goes backwards; only differences count"""
    left_s: float | None = None
    """seconds until the scheduler ends the job that the study runs in; None: no end is known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAdopted:
    """An attempt that an earlier controller of the study launched continues under this one. Comes
    before the first `Tick`."""

    id: AttemptId


PAUSED_ON_REQUEST = "paused on request"
"""why a study rests after `PauseAsked`"""
STOPPED_ON_REQUEST = "stopped on request"
"""why it ends after `StopAsked`"""
CANCELLED_ON_REQUEST = "cancelled on request"
"""why it ends after `CancelAsked`"""
TIME_IS_OVER = "its job's time limit has been reached"
"""why it rests before the scheduler ends its job"""
JOB_ENDS = "its job is being ended early"
"""why it rests when the scheduler takes the job's steps away first, as it does when it preempts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked:
    """Start nothing new; rest when the running trials are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked:
    """Take back a pause that has not come to rest yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Let the running trials finish, then end the study with what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """Kill the running trials and end the study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptAsked:
    """Kill the running trials and rest, so that the study can go on later: Ctrl-C, or a service
    that shuts down."""

    reason: str = "interrupted"
    """said in the study's message"""


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
    """An attempt waits for ranks that others use; once per attempt."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteStarted:
    """An attempt's ranks are placed."""

    number: int
    attempt: int
    places: tuple[NodePlace, ...] = ()
    """where; empty: the runner cannot tell"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAttempt:
    """An attempt is to be ended soon; its `AttemptEnded` still comes."""

    id: AttemptId
    reason: str
    """in words"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRest:
    """The request to come to rest has changed: there is another one, or none any more. Later
    decisions follow from it."""

    status: StudyStatus | None
    """the one that the study shall come to rest in; None: it goes on"""
    reason: str
    """in words"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLate:
    """A report came for an attempt that was over: it is noted and changes nothing."""

    event: AttemptEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteMachineChange:
    """Repeated runs of the baseline showed that the machine changed."""

    change: MachineChange
    again: tuple[int, ...]
    """numbers of the trials that may win after all and will be asked for again"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPhase:
    """The study enters another phase."""

    phase: StudyPhase
    message: str
    """why, in words"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStudy:
    """Nothing runs any more. PAUSED: it can go on later; any other status is for good."""

    status: StudyStatus
    message: str
    """why, in words"""
    baseline: int | None = None
    """number of the baseline trial, when it was measured"""
    best: int | None = None
    """number of the winner's trial"""
    speedup: float | None = None
    """winner against baseline in tokens per second"""
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
    """The event as the history names it: plain values, without what its facts say."""
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
