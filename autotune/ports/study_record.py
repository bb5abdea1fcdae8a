"""What a store hands out of a study: its record, its history, its lease, and what is known of all
studies together.

Times are UTC and aware. A number `*_us` is microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from autotune.spec import Study, StudyStatus, Wanted, Workload
from autotune.spec.plain import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord(Plain):
    """A study as the store keeps it."""

    id: str
    """made by the store: short, unique, safe in a path"""
    study: Study
    """what was asked"""
    spec: Mapping[str, Any]
    """the spec as it was submitted, plain values"""
    status: StudyStatus
    """where it is in its life"""
    created_at: datetime
    """when it was submitted"""
    updated_at: datetime
    """when anything about it changed last"""
    started_at: datetime | None = None
    """when it was RUNNING first"""
    ended_at: datetime | None = None
    """when its status became terminal"""
    elapsed_s: float = 0.0
    """seconds that it was running, without pauses, as of the last checkpoint"""
    message: str = ""
    """why it is in this state, in words"""
    owner: str = ""
    """who submitted it"""
    baseline: int | None = None
    """number of the baseline trial"""
    best: int | None = None
    """number of the best trial, when one was named"""
    speedup: float | None = None
    """best against baseline, by the final rounds where there were any"""
    result: Mapping[str, Any] = field(default_factory=dict)
    """what else the end of the study said: finals, stop reason, notes"""
    trial_counts: Mapping[str, int] = field(default_factory=dict)
    """trials by status"""
    wanted: Wanted = Wanted.RUN
    """what people asked for last"""
    wanted_at: datetime | None = None
    """when they did; None if not since it was submitted"""
    decisions: int = 0
    """how many decisions of its controllers are kept"""
    tags: tuple[str, ...] = ()
    """words for finding it, in alphabetical order"""


class StudyFields(TypedDict, total=False):
    """What may be written beside a study's status. A field that is not given stays as it is."""

    elapsed_s: float
    baseline: int | None
    best: int | None
    speedup: float | None
    result: Mapping[str, Any]


class AskedStudies(TypedDict, total=False):
    """Which studies a caller asks for: those that match all that is given. A name that is empty,
    and None, leave open what they say."""

    status: str | None
    """a `StudyStatus`"""
    model: str
    cluster: str
    owner: str
    name: str
    tag: str


class StudyFilter(AskedStudies, total=False):
    """The same, with what only this package asks for."""

    trainer: str
    runner: str
    without_runner: str
    """those of any other runner"""
    ended_before: datetime | None


class HistoryFilter(TypedDict, total=False):
    """Which measurements across all studies are asked for: those that match all that is given. A
    name that is empty, and None, leave open what they say."""

    model: str
    cluster: str
    trainer: str
    gpu: str
    num_gpus: int | None
    """of the cluster"""
    seq_len: int | None
    """tokens"""
    owner: str
    runner: str
    without_runner: str
    """those of any other runner"""
    workload: int | None
    """a `KnownWorkload.key`"""
    measured_after: datetime | None
    """only configs whose representative was measured later"""


class AskedRuns(TypedDict, total=False):
    """Which observed runs a caller asks for: those that match all that is given. A name that is
    empty leaves open what it says."""

    id: str
    """or its first letters"""
    model: str
    cluster: str
    gpu: str
    trainer: str
    program: str
    outcome: str


class ObservedFilter(AskedRuns, total=False):
    """The same, with what only this package asks for."""

    measured: bool
    """only those whose workload, config and step times are known"""


class EventKind(StrEnum):
    """What a line of a study's history says happened. Older stores may hold kinds that are written
    no more."""

    SUBMITTED = "study.submitted"
    WANTED = "study.wanted"
    """people asked for a pause, its end or the like"""
    CLAIMED = "study.claimed"
    RELEASED = "study.released"
    """a controller took the study, and left it"""
    DECIDED = "study.decided"
    """a decision of the controller, before the lines of its facts"""
    NOTED = "study.noted"
    NOTE_REMOVED = "study.note_removed"
    TAGGED = "study.tagged"
    TRIAL_ASKED = "trial.asked"
    TRIAL_STARTED = "trial.started"
    """an attempt was launched"""
    TRIAL_ADOPTED = "trial.adopted"
    """an attempt goes on under another controller"""
    TRIAL_REMARK = "trial.remark"
    TRIAL_ENDED = "trial.ended"
    TRIAL_LATE = "trial.late"
    """a report that came after the end and changed nothing"""
    ATTEMPT_QUEUED = "attempt.queued"
    ATTEMPT_CANCELLED = "attempt.cancelled"
    """an attempt is to end soon"""
    ATTEMPT_ENDED = "attempt.ended"
    """an attempt was lost; the trial may be launched again"""
    CONTROLLER_BEGAN = "controller.began"
    CALIBRATED = "cluster.calibrated"
    OUTLIER = "cluster.outlier"
    """a node, GPU or link is slower than its likes, and what became of it"""
    PROGRAM_CHECKED = "program.checked"
    MACHINE_CHANGED = "machine.changed"
    GUESS_LEFT_OUT = "guess.left_out"
    GUESS_FILLED_IN = "guess.filled_in"
    TEACHER_DELETED = "history.deleted"
    """a study from which this one learnt was deleted"""


def status_kind(status: StudyStatus) -> str:
    """The kind of the line that says the study became that."""
    return f"study.{status.lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One line of a study's append-only history."""

    study: str
    """id of the study"""
    sequence: int
    """from 1, without gaps"""
    at: datetime
    """when it was written"""
    kind: str
    """an `EventKind`, `status_kind`, or what another release wrote"""
    data: Mapping[str, Any]
    """details of the event, plain values"""

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values, without the study's id."""
        return {
            "sequence": self.sequence,
            "at": self.at.isoformat(),
            "kind": self.kind,
            "data": dict(self.data),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A study at one moment: as long as this is equal, so is everything that the store says of
    it."""

    id: str
    """id of the study"""
    events: int
    """lines in its history"""
    updated_us: int
    """when it changed last, microseconds since 1970 UTC"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write for a study, until it expires. A larger fence is newer; writes with an
    older one are rejected."""

    study: str
    """id of the study"""
    owner: str
    """who holds it"""
    fence: int
    """grows with each claim"""
    expires_at: datetime
    """when others may claim the study"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkload:
    """A workload of which the history has measurements."""

    key: int
    """for the filter `workload` of `HistoryReader.best`"""
    workload: Workload
    """model, cluster, sequence length, batch, trainer"""
    configs: int
    """configs that were measured"""
