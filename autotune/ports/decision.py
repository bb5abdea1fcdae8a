"""A decision of a study's controller: all that follows from one event, which a store keeps in one
transaction or not at all.

KeepTrial, StartAttempt, KeepSteps, CloseAttempt, EndTrial and KeepNote are the facts of a decision,
in their order. All but the last are commands of the controller as well
(`autotune.study.controller.commands`): what is decided is what is kept.
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
    """A new PENDING trial is to be stored."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """An attempt is to be launched, after it was stored."""

    request: TrialRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSteps:
    """Step metrics of a live attempt are to be stored."""

    steps: StepsReported


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseAttempt:
    """An attempt is over and another will follow."""

    number: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrial:
    """A trial became terminal: once, and for good. Of a trial that was terminal before, it is a
    late report."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepNote:
    """A line of its own in the history, e.g. that the machine has changed its speed."""

    kind: str
    data: Mapping[str, Any]
    """plain values"""


Fact = KeepTrial | StartAttempt | KeepSteps | CloseAttempt | EndTrial | KeepNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from one event. A store that was asked twice to keep the decision of one number
    keeps it once."""

    number: int
    """from 1 without gaps in each study, whoever runs it"""
    cause: Mapping[str, Any]
    """the event, as plain values"""
    facts: tuple[Fact, ...]
    """in the order in which they are kept"""
    status: StudyStatus | None = None
    """of the study from now on; None: it stays"""
    message: str | None = None
    """of the study from now on; None: it stays"""
    wanted: Wanted | None = None
    """the decision holds only as long as people want this; None if it always holds"""
    fields: StudyFields = field(default_factory=lambda: StudyFields())
    """what else changes of the study's record"""
