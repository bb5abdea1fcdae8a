"""Values that a store returns about studies: records, history, leases and known workloads; and
filters to query them.

Times are in UTC with timezone. A number `*_us` is microseconds since 1970 UTC.
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
    """A stored study."""

    id: str
    """assigned by the store: short, unique, safe in a path"""
    study: Study
    """the parsed spec"""
    spec: Mapping[str, Any]
    """the spec as submitted, plain values"""
    status: StudyStatus
    """its current status"""
    created_at: datetime
    """when it was submitted"""
    updated_at: datetime
    """when it last changed"""
    started_at: datetime | None = None
    """when it first became RUNNING"""
    ended_at: datetime | None = None
    """when its status became terminal"""
    elapsed_s: float = 0.0
    """running time without pauses as of the last checkpoint, seconds"""
    message: str = ""
    """reason for its status, in words"""
    owner: str = ""
    """who submitted it"""
    baseline: int | None = None
    """number of the baseline trial"""
    best: int | None = None
    """number of the best trial; None if none was named"""
    speedup: float | None = None
    """speed of the best config relative to the baseline, from the final rounds if there were any"""
    result: Mapping[str, Any] = field(default_factory=dict)
    """further results from the end of the study: finals, stop reason, notes"""
    trial_counts: Mapping[str, int] = field(default_factory=dict)
    """number of trials by status"""
    wanted: Wanted = Wanted.RUN
    """the last request of a user"""
    wanted_at: datetime | None = None
    """time of that request; None if there was none since submission"""
    decisions: int = 0
    """number of stored controller decisions"""
    tags: tuple[str, ...] = ()
    """tags in alphabetical order"""


class StudyFields(TypedDict, total=False):
    """Fields of a study that can be written together with its status. Missing ones are
    unchanged."""

    elapsed_s: float
    baseline: int | None
    best: int | None
    speedup: float | None
    result: Mapping[str, Any]


class AskedStudies(TypedDict, total=False):
    """A filter for studies, which must match all given fields. Empty strings and None match
    everything."""

    status: str | None
    """a `StudyStatus`"""
    model: str
    cluster: str
    owner: str
    name: str
    tag: str


class StudyFilter(AskedStudies, total=False):
    """`AskedStudies` with fields for internal queries."""

    trainer: str
    runner: str
    without_runner: str
    """excludes this runner"""
    ended_before: datetime | None


class HistoryFilter(TypedDict, total=False):
    """A filter for measurements of all studies, which must match all given fields. Empty strings and
    None match everything."""

    model: str
    cluster: str
    trainer: str
    gpu: str
    num_gpus: int | None
    """number of GPUs of the cluster"""
    seq_len: int | None
    """tokens"""
    owner: str
    runner: str
    without_runner: str
    """excludes this runner"""
    workload: int | None
    """a `KnownWorkload.key`"""
    measured_after: datetime | None
    """only configs whose representative trial was measured later"""


class AskedRuns(TypedDict, total=False):
    """A filter for observed runs, which must match all given fields. Empty strings match
    everything."""

    id: str
    """the id or its beginning"""
    model: str
    cluster: str
    gpu: str
    trainer: str
    program: str
    outcome: str


class ObservedFilter(AskedRuns, total=False):
    """`AskedRuns` with fields for internal queries."""

    measured: bool
    """only runs with known workload, config and step times"""


class EventKind(StrEnum):
    """Kinds of events in a study's history. Older stores may contain kinds that are no longer
    written."""

    SUBMITTED = "study.submitted"
    WANTED = "study.wanted"
    """a user requested to pause, resume, stop or cancel the study"""
    CLAIMED = "study.claimed"
    """a controller claimed the study's lease"""
    RELEASED = "study.released"
    """a controller released the study's lease"""
    DECIDED = "study.decided"
    """a decision of the controller; the events of its facts follow"""
    NOTED = "study.noted"
    NOTE_REMOVED = "study.note_removed"
    TAGGED = "study.tagged"
    TRIAL_ASKED = "trial.asked"
    TRIAL_STARTED = "trial.started"
    """an attempt was launched"""
    TRIAL_ADOPTED = "trial.adopted"
    """an attempt continues under another controller"""
    TRIAL_REMARK = "trial.remark"
    TRIAL_ENDED = "trial.ended"
    TRIAL_LATE = "trial.late"
    """a report after the trial's end, without effect"""
    ATTEMPT_QUEUED = "attempt.queued"
    ATTEMPT_CANCELLED = "attempt.cancelled"
    """the end of an attempt was requested"""
    ATTEMPT_ENDED = "attempt.ended"
    """an attempt was lost; the trial may be launched again"""
    CONTROLLER_BEGAN = "controller.began"
    CALIBRATED = "cluster.calibrated"
    OUTLIER = "cluster.outlier"
    """a node, GPU or link is slower than the others, and what was done about it"""
    PROGRAM_CHECKED = "program.checked"
    MACHINE_CHANGED = "machine.changed"
    GUESS_LEFT_OUT = "guess.left_out"
    GUESS_FILLED_IN = "guess.filled_in"
    TEACHER_DELETED = "history.deleted"
    """a study in this study's history was deleted"""


def status_kind(status: StudyStatus) -> str:
    """The kind of the event for a change to this status."""
    return f"study.{status.lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """An event of a study's append-only history."""

    study: str
    """id of the study"""
    sequence: int
    """from 1, without gaps"""
    at: datetime
    """when it was written"""
    kind: str
    """an `EventKind`, a `status_kind`, or a kind of another release"""
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
    """A version of a study. While it is equal, nothing about the study has changed."""

    id: str
    """id of the study"""
    events: int
    """number of events in its history"""
    updated_us: int
    """when it last changed, microseconds since 1970 UTC"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The exclusive right to write a study's trials, until it expires. Writes with an older fencing
    number than the last are rejected."""

    study: str
    """id of the study"""
    owner: str
    """its holder"""
    fence: int
    """fencing number, which increases with each claim"""
    expires_at: datetime
    """when others may claim the study"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkload:
    """A workload with measurements in the store."""

    key: int
    """value of the filter `workload` of `HistoryReader.best`"""
    workload: Workload
    """model, cluster, sequence length, batch, trainer"""
    configs: int
    """number of measured configs"""
