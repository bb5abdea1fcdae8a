"""What a running study tells whoever watches it: the events of the live view, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.ports import StepsReported, StudyRecord
from autotune.spec import Failure, Trial
from autotune.study.controller import StudyPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOpened:
    """The loop has the study; `past` holds the trials that were there before."""

    record: StudyRecord
    past: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered:
    """The study does something else from here on."""

    phase: StudyPhase
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAsked:
    """A trial was made and kept; it waits for ranks."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """An attempt's ranks are placed."""

    number: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStepped:
    """Some steps are done."""

    number: int
    steps: StepsReported


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRetried:
    """An attempt was lost and another follows."""

    number: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial is terminal."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class BestChanged:
    """This trial is the best so far."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that people should know, e.g. that the database is away."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRested:
    """The loop is over: the study ended, or is paused."""

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
