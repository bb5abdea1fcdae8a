"""Events of a running study for the live view, logs and metrics, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """The study enters another phase; `message` says why."""

    phase: StudyPhase
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAsked:
    """A trial was created and stored; it waits for ranks."""

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
