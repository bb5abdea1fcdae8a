"""The store of results, split by who needs what. Each function asks for the narrowest role; `Store`
is all that tuning needs.

    StudyReader           studies, trials, steps, history, who holds the lease: status, results, the read part of the service
    HistoryReader         the best across all studies: `autotune best`
    StudyWriter           submits studies and says what is wanted of them: `submit`, `pause`, `cancel`
    LeaseKeeper           claims, renews and releases the right to write for a study
    TrialWriter           decisions about trials, and steps, under a lease: the controller's loop
    ProfileStore          what dry runs said of a model: `fit`, `plan`
    ObservedStore         runs that people started themselves: `run`, `list --observed`, and what learns from them
    CalibrationStore      constants of the cost model, measured once for a cluster and trainer: `calibrate`, `plan`
    ReferenceLossStore    losses of fp32 trials, measured once for a model, data and seed
    StudyStore            StudyReader, StudyWriter: the supervisor, pause and resume
    LeasedStore           StudyStore, LeaseKeeper, TrialWriter: one running study (`autotune.study.lease`)
    Store                 all of these: `tune`, `best`, `plan`

What the service asks for beyond that is in `autotune.ports.service_store`. A store of another kind
implements these methods and passes `autotune.testing.stores.StoreContract`; it inherits from
nothing.

Every acknowledged fact is kept. Each transition is a compare-and-set, and whoever writes for a
study shows the fencing number of its lease. Writes under a lease can be repeated: the same call
again is the same fact. Methods that write raise `ConflictError` when the present state or the lease
forbids it. All methods raise `NotFoundError` for unknown ids and `StoreUnavailableError` when the
store cannot be reached. Threads may share a store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, Unpack

from autotune.ports.decision import Decision
from autotune.ports.study_record import (
    HistoryEvent,
    HistoryFilter,
    KnownWorkload,
    Lease,
    ObservedFilter,
    Revision,
    StudyFields,
    StudyFilter,
    StudyRecord,
)
from autotune.ports.trial_runner import StepsReported
from autotune.spec import ObservedRun, Study, StudyStatus, Trial, Wanted


class StudyReader(Protocol):
    """Reads studies with their trials, steps and history."""

    def study(self, study_id: str) -> StudyRecord:
        """The study of this id, the newest of this name, or the one whose id begins so."""
        ...

    def studies(
        self, *, limit: int = 50, offset: int = 0, **filters: Unpack[StudyFilter]
    ) -> list[StudyRecord]:
        """Studies that match all filters, newest first."""
        ...

    def trials(self, study_id: str, *, numbers: Collection[int] | None = None) -> list[Trial]:
        """All trials of a study by number, or those of these numbers that there are; without step
        series beyond what the measurement holds.

        Each change of a trial comes with an event `trial.*` or `attempt.*` that holds its `number`:
        whoever knows the trials as of an event has to read again only those that later events name.
        """
        ...

    def revision(self, study_id: str) -> Revision:
        """What the study is at now; far cheaper than the study, for those who ask again and
        again."""
        ...

    def events(
        self, study_id: str, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> list[HistoryEvent]:
        """History after that sequence number, in order: the first `limit` events, or with `newest`
        the last `limit`."""
        ...

    def steps(
        self, study_id: str, number: int, *, attempt: int | None = None
    ) -> dict[str, list[float]]:
        """Step metrics of a trial's attempt (default the last): step, step_time_s, loss, grad_norm
        as lists."""
        ...

    def holder(self, study_id: str) -> Lease | None:
        """The last lease that was taken and not given back, also when it ran out; None when nobody
        has one."""
        ...

    def is_held(self, study_id: str) -> bool:
        """Whether somebody's lease is in force, by the clock of the store: machines may disagree
        about the time."""
        ...

    def claimable(self, *, limit: int = 50) -> list[StudyRecord]:
        """Studies that should run (QUEUED, RUNNING, STOPPING) but that nobody holds: first those
        that ran before, oldest first, then those of `waiting`."""
        ...

    def waiting(self) -> list[tuple[str, str]]:
        """Id and owner of the QUEUED studies that nobody holds, in the order in which they are
        started: owners take turns.

        A study counts those of its owner that run and that wait before it; the lowest count goes
        first. Of equals, that of the owner whose last study was started longest ago, and then the
        oldest.
        """
        ...


class HistoryReader(Protocol):
    """Reads what all studies together have measured."""

    def best(
        self, *, one_each: bool = False, limit: int = 10, **filters: Unpack[HistoryFilter]
    ) -> list[tuple[StudyRecord, Trial]]:
        """Best measured trials by the tokens per second per GPU of the cluster at which they stand,
        best first, one for each workload and config.

        A config that was measured more than once is represented by its median, the lower one of an
        even number. Simulated measurements count only where there is no real one. It stands at what
        the finals of its median's study say (`autotune.reward.ranking`); of those that stand equal,
        the one that was measured faster comes first. Its memory peak is the highest of all runs of
        the config in that study. `one_each`: only the best of each model and
        cluster, the latest study first, for the speeds of unlike models say nothing about each
        other.
        """
        ...

    def known_workloads(self) -> list[KnownWorkload]:
        """All workloads of which there are measurements, the one that was measured last first."""
        ...


class StudyWriter(Protocol):
    """Submits studies, and writes what people want of them. Moves the status of studies that nobody
    runs."""

    def submit(
        self,
        study: Study,
        spec: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        join: bool = False,
    ) -> StudyRecord:
        """Keeps a new study as QUEUED. The same key returns the study that it made first; the same
        key with another spec conflicts.

        `join`: the newest study of the same name and spec that has not ended is returned instead,
        where there is one. Whether there is one is found out in the same transaction: of two that
        submit at the same moment one joins the other.
        """
        ...

    def want(self, study_id: str, wanted: Wanted, *, message: str = "") -> StudyRecord:
        """Writes what people want of the study, and leaves its status alone. Raises `ConflictError`
        when it has ended, or was asked to end before."""
        ...

    def set_status(
        self,
        study_id: str,
        status: StudyStatus,
        *,
        expect: Sequence[StudyStatus],
        message: str | None = "",
        lease: Lease | None = None,
        wanted: Wanted | None = None,
        **fields: Unpack[StudyFields],
    ) -> StudyRecord:
        """Moves the study on, when its status is one of `expect`. A terminal status never changes,
        and leaves no trial open.

        `message` None: it stays. `wanted`: only when people want this of it. Without a `lease`:
        only while nobody holds the study.
        """
        ...

    def record_event(self, study_id: str, kind: str, data: Mapping[str, Any]) -> None:
        """Appends a line of one's own to the history, e.g. who asked for a pause."""
        ...

    def delete(self, study_id: str, *, learners: Sequence[str] = ()) -> None:
        """Removes a study that has ended, with its trials and its history, for good. Its
        measurements no longer count for `best`.

        `learners`: studies that learnt from it; each gets the event `history.deleted`. Raises
        `ConflictError` when the study has not ended.
        """
        ...


class LeaseKeeper(Protocol):
    """Decides who may write for a study."""

    def claim(self, study_id: str, owner: str, *, lease_s: float) -> Lease | None:
        """Takes the lease when nobody holds it (or it ran out); None when somebody does."""
        ...

    def renew(self, lease: Lease, *, lease_s: float) -> Lease:
        """The lease, longer; `ConflictError` when it was taken over."""
        ...

    def release(self, lease: Lease) -> None:
        """Gives the lease back; nothing happens when it is no longer ours."""
        ...


class TrialWriter(Protocol):
    """Writes the trials of one study, under its lease."""

    def keep_decision(self, lease: Lease, decision: Decision) -> None:
        """Keeps all facts of the decision, with the event that caused it, in one transaction: all
        of them or none.

        A decision whose number was kept before is acknowledged and changes nothing. Trials are
        numbered without gaps, run one attempt at a time and end once: the end of a trial that is
        terminal is kept in the history as `trial.late` and changes nothing. Raises `ConflictError`
        when a fact cannot follow, when the number is not the next, or when people want something
        else by now; measurements under a lease that was taken over are kept as late.
        """
        ...

    def adopt_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        """Notes that an attempt that an earlier holder started goes on under this lease."""
        ...

    def add_steps(self, lease: Lease, steps: Sequence[StepsReported]) -> None:
        """Keeps step metrics, in bulk. Steps that are there already are left as they are."""
        ...


class CalibrationStore(Protocol):
    """Keeps the cost model's constants that were measured on a cluster."""

    def calibration(self, cluster: str, trainer: str) -> Mapping[str, Any] | None:
        """The constants that were kept under exactly these names; None when nothing was
        measured."""
        ...

    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        """Keeps the constants for a cluster (or GPU type) and trainer in place of those before."""
        ...


class ProfileStore(Protocol):
    """Keeps what dry runs said of a model's training, for all configs."""

    def profile(self, fingerprint: str) -> Mapping[str, Any] | None:
        """The profile that was kept under exactly this fingerprint; None when no dry run was
        made."""
        ...

    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Keeps the profile in place of the one before."""
        ...


class ObservedStore(Protocol):
    """Keeps runs that people started themselves. They are no trials: `best` and the searchers'
    trials never hold one."""

    def keep_observed(self, run: ObservedRun) -> ObservedRun:
        """Keeps the run; the same with the id by which it is known from now on."""
        ...

    def observed(
        self, *, limit: int = 50, offset: int = 0, **filters: Unpack[ObservedFilter]
    ) -> list[ObservedRun]:
        """Runs that match all filters, the one that was kept last first."""
        ...


class KnowledgeStore(CalibrationStore, ProfileStore, ObservedStore, Protocol):
    """What the cost model knows beside its formulas."""


class ReferenceLossStore(Protocol):
    """Keeps the losses of fp32 trials, against which other precisions are judged."""

    def reference_losses(self, model: str, data: str, seed: int) -> tuple[float, ...] | None:
        """The losses by step, from 0; None when nobody measured them."""
        ...

    def save_reference_losses(
        self, model: str, data: str, seed: int, losses: Sequence[float]
    ) -> None:
        """Keeps the losses by step; a shorter series does not replace a longer one."""
        ...


class StudyStore(StudyReader, StudyWriter, Protocol):
    """Studies as whoever acts on them from outside needs them."""


class LeasedStore(StudyStore, LeaseKeeper, TrialWriter, Protocol):
    """Studies as the controller that runs one of them needs them."""


class Store(LeasedStore, HistoryReader, KnowledgeStore, ReferenceLossStore, Protocol):
    """All that planning, tuning and asking for the best need."""

    def close(self) -> None:
        """Lets go of connections."""
        ...
