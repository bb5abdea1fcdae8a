"""A decision of a study's controller: the consequences of one event, which a store writes in one
transaction.

A decision is a sequence of facts: KeepTrial, StartAttempt, KeepSteps, CloseAttempt, EndTrial,
KeepNote. All but KeepNote are also commands of the controller
(`autotune.study.controller.commands`), so that what is executed is what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.ports.study_record import StudyFields
from autotune.ports.trial_runner import StepsReported, TrialRequest
from autotune.spec import Failure, StudyStatus, Trial, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTrial:
    """Store a new PENDING trial."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Store an attempt, then launch it."""

    request: TrialRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSteps:
    """Store step metrics of a running attempt."""

    steps: StepsReported


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseAttempt:
    """An attempt failed, and another will follow."""

    number: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrial:
    """A trial became terminal, permanently. For a trial that is terminal already, this is a late
    report."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepNote:
    """Add an event to the study's history, such as a change of the machine's speed."""

    kind: str
    data: Mapping[str, Any]
    """plain values"""


Fact = KeepTrial | StartAttempt | KeepSteps | CloseAttempt | EndTrial | KeepNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The consequences of one event. A store writes the decision with a given number only once."""

    number: int
    """counts from 1 without gaps in each study, across all its controllers"""
    cause: Mapping[str, Any]
    """the event, as plain values"""
    facts: tuple[Fact, ...]
    """in the order in which they are written"""
    status: StudyStatus | None = None
    """new status of the study; None: unchanged"""
    message: str | None = None
    """new message of the study; None: unchanged"""
    wanted: Wanted | None = None
    """the decision is valid only if users still request this; None: always valid"""
    fields: StudyFields = field(default_factory=lambda: StudyFields())
    """further fields of the study's record to change"""
