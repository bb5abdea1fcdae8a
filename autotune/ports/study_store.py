"""The results store, split into roles. Functions take the narrowest role that they need; `Store` has
all roles for tuning.

    StudyReader           studies, trials, steps, history, lease holders: status, results, the read part of the service
    HistoryReader         the best configs across all studies: `autotune best`
    StudyWriter           submits studies, and stores users' requests: `submit`, `pause`, `cancel`
    LeaseKeeper           claims, renews and releases the lease of a study
    TrialWriter           writes decisions about trials, and steps, under a lease: the controller's loop
    ProfileStore          profiles of models from dry runs: `fit`, `plan`
    ObservedStore         runs that users started themselves: `run`, `list --observed`
    CalibrationStore      constants of the cost model measured for a cluster and trainer: `calibrate`, `plan`
    ReferenceLossStore    losses of fp32 trials for a model, data and seed
    StudyStore            StudyReader, StudyWriter: the supervisor, pause and resume
    LeasedStore           StudyStore, LeaseKeeper, TrialWriter: one running study (`autotune.study.lease`)
    Store                 all of these: `tune`, `best`, `plan`

`autotune.ports.service_store` has the roles that only the service needs. Another store implements
these methods, without inheriting from the protocols, and passes
`autotune.testing.stores.StoreContract`.

Acknowledged writes are durable. Each transition is a compare-and-set, and writers of a study pass
its lease, whose fencing number is checked. Writes under a lease are idempotent. Methods that write
raise `ConflictError` if the current state or the lease does not allow it. All methods raise
`NotFoundError` for unknown ids and `StoreUnavailableError` if the store cannot be reached. Stores
are thread-safe.
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
        """The study with this id, the newest with this name, or the one whose id begins with it."""
        ...

    def studies(
        self, *, limit: int = 50, offset: int = 0, **filters: Unpack[StudyFilter]
    ) -> list[StudyRecord]:
        """Studies that match all filters, newest first."""
        ...

    def trials(self, study_id: str, *, numbers: Collection[int] | None = None) -> list[Trial]:
        """The trials of a study sorted by number, or the existing ones among `numbers`; with only the
        step series that their measurements contain.

        Each change of a trial adds an event `trial.*` or `attempt.*` with its `number`. So to update
        trials read earlier, it is enough to read those that later events name.
        """
        ...

    def revision(self, study_id: str) -> Revision:
        """The current version of the study; much cheaper than `study`, for polling."""
        ...

    def events(
        self, study_id: str, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> list[HistoryEvent]:
        """Events with a sequence number above `after`, in order: the first `limit`, or with `newest`
        the last `limit`."""
        ...

    def steps(
        self, study_id: str, number: int, *, attempt: int | None = None
    ) -> dict[str, list[float]]:
        """Step metrics of a trial's attempt, by default the last one, as lists: step, step_time_s,
        loss, grad_norm."""
        ...

    def holder(self, study_id: str) -> Lease | None:
        """The last lease that was claimed and not released, even if it has expired; None without
        one."""
        ...

    def is_held(self, study_id: str) -> bool:
        """Whether a lease is valid, by the store's clock, because clocks of machines may differ."""
        ...

    def claimable(self, *, limit: int = 50) -> list[StudyRecord]:
        """Studies that should run (QUEUED, RUNNING, STOPPING) but have no valid lease: first those
        that ran before, oldest first, then those of `waiting`."""
        ...

    def waiting(self) -> list[tuple[str, str]]:
        """Ids and owners of the QUEUED studies without a lease, in the order in which they will
        start, which alternates between owners.

        Studies are sorted by the number of the same owner's studies that run or wait before them.
        Ties are resolved in favor of the owner whose last study started longest ago, then of the
        oldest study.
        """
        ...


class HistoryReader(Protocol):
    """Reads measurements of all studies."""

    def best(
        self, *, one_each: bool = False, limit: int = 10, **filters: Unpack[HistoryFilter]
    ) -> list[tuple[StudyRecord, Trial]]:
        """The best measured trials by tokens per second per GPU of the cluster, best first, one per
        workload and config.

        A config with several measurements is represented by its median, the lower one of an even
        number. Simulated measurements count only if there is no real one. The speed is corrected by
        the finals of the median's study (`autotune.reward.ranking`); among equal ones, the faster
        measurement comes first. The peak memory is the highest of all runs of the config in that
        study. `one_each`: only the best of each model and cluster, the latest study first, because
        speeds of different models are not comparable.
        """
        ...

    def known_workloads(self) -> list[KnownWorkload]:
        """All workloads with measurements, the last measured one first."""
        ...


class StudyWriter(Protocol):
    """Submits studies, stores users' requests, and changes the status of studies that are not
    running."""

    def submit(
        self,
        study: Study,
        spec: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        join: bool = False,
    ) -> StudyRecord:
        """Store a new study as QUEUED. With an `idempotency_key` used before, return the study
        created then, or raise `ConflictError` if its spec differs.

        `join`: if a study with the same name and spec has not ended, return the newest such study
        instead. This is checked in the same transaction, so that of two concurrent submissions one
        joins the other.
        """
        ...

    def want(self, study_id: str, wanted: Wanted, *, message: str = "") -> StudyRecord:
        """Store a user's request without changing the status. Raises `ConflictError` if the study
        has ended, or its end was requested already."""
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
        """Change the study's status, if the current one is in `expect`. A terminal status never
        changes, and ends all open trials.

        `message`: None leaves it unchanged. `wanted`: the change is made only if this is the users'
        last request. Without a `lease`, the change is made only if nobody holds one.
        """
        ...

    def record_event(self, study_id: str, kind: str, data: Mapping[str, Any]) -> None:
        """Append an event to the history, such as who requested a pause."""
        ...

    def delete(self, study_id: str, *, learners: Sequence[str] = ()) -> None:
        """Delete a study that has ended, with its trials and history, permanently. Its measurements
        no longer count for `best`.

        `learners`: studies that have it in their history; each gets the event `history.deleted`.
        Raises `ConflictError` if the study has not ended.
        """
        ...


class LeaseKeeper(Protocol):
    """Manages the leases of studies."""

    def claim(self, study_id: str, owner: str, *, lease_s: float) -> Lease | None:
        """Claim the lease. Returns None if somebody holds a valid one."""
        ...

    def renew(self, lease: Lease, *, lease_s: float) -> Lease:
        """Extend the lease. Raises `ConflictError` if another holder has claimed it."""
        ...

    def release(self, lease: Lease) -> None:
        """Release the lease; no effect if another holder has claimed it."""
        ...


class TrialWriter(Protocol):
    """Writes the trials of a study under its lease."""

    def keep_decision(self, lease: Lease, decision: Decision) -> None:
        """Write all facts of the decision, with the event that caused it, in one transaction.

        A decision whose number was written before has no effect. Trials are numbered without gaps,
        run one attempt at a time and end once; the end of a terminal trial is only added to the
        history as `trial.late`. Raises `ConflictError` if a fact is not possible in the current
        state, the number is not the next one, or the users' request has changed. Measurements under
        a lease that another holder has claimed are added to the history as late.
        """
        ...

    def adopt_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        """Record that an attempt of an earlier lease holder continues under this lease."""
        ...

    def add_steps(self, lease: Lease, steps: Sequence[StepsReported]) -> None:
        """Add step metrics in bulk. Existing steps are unchanged."""
        ...


class CalibrationStore(Protocol):
    """Stores constants of the cost model measured on clusters."""

    def calibration(self, cluster: str, trainer: str) -> Mapping[str, Any] | None:
        """The constants stored under exactly these names, or None."""
        ...

    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        """Store the constants for a cluster (or GPU type) and trainer, replacing earlier ones."""
        ...


class ProfileStore(Protocol):
    """Stores profiles of models from dry runs, which hold for all configs."""

    def profile(self, fingerprint: str) -> Mapping[str, Any] | None:
        """The profile stored under exactly this fingerprint, or None."""
        ...

    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Store the profile, replacing an earlier one."""
        ...


class ObservedStore(Protocol):
    """Stores runs that users started themselves. They are not trials, and `best` does not include
    them."""

    def keep_observed(self, run: ObservedRun) -> ObservedRun:
        """Store the run and return it with its id."""
        ...

    def observed(
        self, *, limit: int = 50, offset: int = 0, **filters: Unpack[ObservedFilter]
    ) -> list[ObservedRun]:
        """Runs that match all filters, the last stored one first."""
        ...


class KnowledgeStore(CalibrationStore, ProfileStore, ObservedStore, Protocol):
    """Stores the data that the cost model uses besides its formulas."""


class ReferenceLossStore(Protocol):
    """Stores losses of fp32 trials, with which other precisions are compared."""

    def reference_losses(self, model: str, data: str, seed: int) -> tuple[float, ...] | None:
        """The losses by step, from 0, or None."""
        ...

    def save_reference_losses(
        self, model: str, data: str, seed: int, losses: Sequence[float]
    ) -> None:
        """Store the losses by step. A shorter series does not replace a longer one."""
        ...


class StudyStore(StudyReader, StudyWriter, Protocol):
    """The roles for acting on studies from outside, as the supervisor does."""


class LeasedStore(StudyStore, LeaseKeeper, TrialWriter, Protocol):
    """The roles for running a study, as its controller does."""


class Store(LeasedStore, HistoryReader, KnowledgeStore, ReferenceLossStore, Protocol):
    """All roles for planning, tuning and querying the best configs."""

    def close(self) -> None:
        """Close connections."""
        ...
