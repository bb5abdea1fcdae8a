"""What the loop needs from the outside: a runner of trials, a store of results, a clock. Protocols and the values they exchange.

A runner executes attempts and reports what happens as events; it decides nothing about studies. The store keeps every acknowledged
fact; each transition is a compare-and-set, and whoever writes for a study shows the fencing number of its lease.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from autotune.spec import (
    Failure,
    Measurement,
    MeasureSpec,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialStatus,
    Workload,
)

AttemptId = tuple[str, int, int]
"""(study id, trial number, attempt from 1)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One attempt to be run. Plain values only: it crosses process and machine borders as JSON."""

    study: str
    """id of the study"""
    number: int
    """trial number"""
    attempt: int
    """from 1"""
    workload: Workload
    """what is trained"""
    config: ParallelConfig
    """how"""
    measure: MeasureSpec
    """how it is measured, with its deadlines"""
    seed: int = 0
    """seed of weights and data"""
    trainer: str = "native"
    """whose training loop"""
    trainer_options: Mapping[str, Any] = field(default_factory=dict)
    """what else the trainer wants"""
    data: str | None = None
    """text or .bin file; None means the text that ships"""
    profile: bool = False
    """also take a breakdown of the step"""
    beat_step_time_s: float | None = None
    """best step time so far for the same tokens per step; a trial that can no longer come near it ends early as STOPPED"""
    repeat: int = 0
    """how often this config was measured before in this study"""

    @property
    def id(self) -> AttemptId:
        """What events of this attempt carry."""
        return (self.study, self.number, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The ranks are placed and begin to set up."""

    id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptQueued:
    """The attempt still waits for ranks that others use. Said again and again while it lasts: this time counts for no deadline."""

    id: AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsReported:
    """Some optimizer steps are done. Series of equal length; steps count from 0 with warm-up."""

    id: AttemptId
    first_step: int
    step_times_s: tuple[float, ...]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The attempt is over and its resources are free. Exactly one per attempt that was started.

    `failure` None means measured: COMPLETED, or STOPPED when `stopped` says why it ended early. A cancelled attempt has `cancelled`.
    """

    id: AttemptId
    measurement: Measurement | None = None
    failure: Failure | None = None
    stopped: str = ""
    cancelled: bool = False


RunnerEvent = AttemptQueued | AttemptStarted | StepsReported | AttemptEnded


class TrialRunner(Protocol):
    """Executes attempts. Not thread-safe: one loop owns one runner."""

    trainers: Sequence[str]
    """names of the trainers that it can really run"""

    @property
    def capacity(self) -> int:
        """Ranks that can be in use at once."""
        ...

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt and returns at once; whatever goes wrong later comes as `AttemptEnded` with a failure.

        Raises `RunnerError` only when nothing can be run at all (Ray gone, no such trainer).
        """
        ...

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        ...

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt soon: cooperative stop, then kill. Its `AttemptEnded` (cancelled) still comes. Unknown ids are ignored."""
        ...

    def close(self) -> None:
        """Kills what runs and frees everything. Idempotent; bounded in time."""
        ...


@runtime_checkable
class AdoptingRunner(TrialRunner, Protocol):
    """A runner whose attempts outlive it for a while, so that the next one of the study can go on with them."""

    def adopt(self, study: str, attempts: Collection[AttemptId]) -> list[AttemptId]:
        """Takes over what an earlier runner of this study left behind: those of `attempts` that still run, or ended unheard. All that they reported
        since they began is reported again. What else was left is kept warm, or ended."""
        ...


class Clock(Protocol):
    """Time."""

    def now(self) -> datetime:
        """UTC, aware."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write for a study, until it expires. A larger fence is newer; writes with an older one are refused."""

    study: str
    owner: str
    fence: int
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study as the store keeps it."""

    id: str
    """made by the store: short, unique, safe in a path"""
    study: Study
    spec: Mapping[str, Any]
    """the spec as it was submitted, plain values"""
    status: StudyStatus
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One line of a study's append-only history."""

    study: str
    sequence: int
    """from 1, without gaps"""
    at: datetime
    kind: str
    """e.g. study.submitted, trial.asked, trial.started, trial.ended, trial.late, study.paused"""
    data: Mapping[str, Any]


class Store(Protocol):
    """Where results live. Methods that write raise `ConflictError` when the present state or the lease forbids it,
    `NotFoundError` for unknown ids and `StoreUnavailableError` when the database cannot be reached."""

    def submit(
        self, study: Study, spec: Mapping[str, Any], *, idempotency_key: str | None = None, owner: str = ""
    ) -> StudyRecord:
        """Keeps a new study as QUEUED. The same key returns the study that it made first; the same key with another spec conflicts."""
        ...

    def study(self, study_id: str) -> StudyRecord:
        """The study of this id, the newest of this name, or the one whose id begins so."""
        ...

    def studies(
        self,
        *,
        status: StudyStatus | None = None,
        model: str = "",
        cluster: str = "",
        trainer: str = "",
        owner: str = "",
        name: str = "",
        ended_before: datetime | None = None,
        runner: str = "",
        without_runner: str = "",
        limit: int = 50,
        offset: int = 0,
    ) -> list[StudyRecord]:
        """Studies, newest first."""
        ...

    def trials(self, study_id: str) -> list[Trial]:
        """All trials of a study by number; without step series beyond what the measurement holds."""
        ...

    def events(self, study_id: str, *, after: int = 0, limit: int = 1000) -> list[HistoryEvent]:
        """History after that sequence number."""
        ...

    def record_event(self, study_id: str, kind: str, data: Mapping[str, Any]) -> None:
        """Appends a line of one's own to the history, e.g. who asked for a pause."""
        ...

    def claimable(self, *, limit: int = 50) -> list[StudyRecord]:
        """Studies that should run (QUEUED, RUNNING, STOPPING) but that nobody holds, oldest first."""
        ...

    def claim(self, study_id: str, owner: str, *, lease_s: float) -> Lease | None:
        """Takes the lease when nobody holds it (or it ran out); None when somebody does."""
        ...

    def holder(self, study_id: str) -> Lease | None:
        """The last lease that was taken and not given back, also when it ran out; None when nobody has one."""
        ...

    def renew(self, lease: Lease, *, lease_s: float) -> Lease:
        """The lease, longer; `ConflictError` when it was taken over."""
        ...

    def release(self, lease: Lease) -> None:
        """Gives the lease back; nothing happens when it is no longer ours."""
        ...

    def add_trial(self, lease: Lease, trial: Trial) -> None:
        """Keeps a new PENDING trial; numbers have no gaps."""
        ...

    def start_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        """PENDING or RUNNING (next attempt) -> RUNNING."""
        ...

    def adopt_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        """Notes that an attempt that an earlier holder started goes on under this lease."""
        ...

    def add_steps(self, lease: Lease, steps: Sequence[StepsReported]) -> None:
        """Keeps step metrics, in bulk. Steps that are there already are left as they are."""
        ...

    def steps(self, study_id: str, number: int, *, attempt: int | None = None) -> dict[str, list[float]]:
        """Step metrics of a trial's attempt (default the last): step, step_time_s, loss, grad_norm as lists."""
        ...

    def end_attempt(self, lease: Lease, number: int, attempt: int, failure: Failure | None) -> None:
        """Closes an attempt that will be tried again (WORKER_LOST)."""
        ...

    def end_trial(self, lease: Lease, trial: Trial) -> bool:
        """Makes the trial terminal, once. A second report is kept in the history as `trial.late`, changes nothing and returns False."""
        ...

    def set_status(
        self,
        study_id: str,
        status: StudyStatus,
        *,
        expect: Sequence[StudyStatus],
        message: str = "",
        lease: Lease | None = None,
        **fields: Any,
    ) -> StudyRecord:
        """Moves the study on, when its status is one of `expect`; `fields`: elapsed_s, baseline, best, speedup, result."""
        ...

    def best(
        self, *, model: str = "", cluster: str = "", trainer: str = "", limit: int = 10, **filters: Any
    ) -> list[tuple[StudyRecord, Trial]]:
        """Best measured trials across all history by tokens per second and GPU of the cluster, best first."""
        ...

    def close(self) -> None:
        """Lets go of connections."""
        ...


__all__ = [
    "AttemptEnded",
    "AttemptId",
    "AttemptQueued",
    "AttemptStarted",
    "Clock",
    "HistoryEvent",
    "Lease",
    "RunnerEvent",
    "StepsReported",
    "Store",
    "StudyRecord",
    "TrialRequest",
    "TrialRunner",
    "TrialStatus",
]
