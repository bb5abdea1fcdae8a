"""`SqlStore`: the store on a database. Each method is one transaction, implemented in the module
for its subject."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from sqlalchemy import text

from autotune.errors import ConflictError
from autotune.ports import (
    AuditEvent,
    Decision,
    HistoryEvent,
    HistoryFilter,
    KnownWorkload,
    Lease,
    ObservedFilter,
    Revision,
    Statistics,
    StepsReported,
    StudyFields,
    StudyFilter,
    StudyRecord,
)
from autotune.spec import ObservedRun, Study, StudyStatus, Trial, Wanted
from autotune.store import queries, schema
from autotune.store.connection.database import Database
from autotune.store.connection.location import StoreLocation
from autotune.store.writes import (
    decisions,
    history,
    lifecycle,
    locking,
    observed,
    shared_measurements,
    submissions,
    trials,
)
from autotune.store.writes.annotations import AnnotationTables
from autotune.store.writes.tokens import TokenTable, append_audit, read_audit


class SqlStore:
    """Implements `autotune.ports.ServiceStore`. Threads may share one; each process opens its
    own."""

    def __init__(self, location: StoreLocation) -> None:
        self.database = Database(location)
        self.tokens = TokenTable(self.database)
        self.annotations = AnnotationTables(self.database)
        try:
            schema.prepare(self.database)
        except BaseException:
            self.database.close()
            raise

    def __repr__(self) -> str:
        return f"SqlStore({self.database.location})"

    def submit(
        self,
        study: Study,
        spec: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        join: bool = False,
    ) -> StudyRecord:
        """Store a new study as QUEUED and return it. A known `idempotency_key` returns its study;
        `join` returns an unfinished study of the same spec, if there is one."""
        with self.database.write(durable=True) as connection:
            joined = submissions.find_unfinished(connection, study, spec) if join else None
            study_id = joined or submissions.submit(connection, study, spec, idempotency_key, owner)
        return self.study(study_id)

    def study(self, study_id: str) -> StudyRecord:
        """Return the study with this id, name (the newest one) or unique prefix of an id."""
        with self.database.read() as connection:
            return queries.study(connection, study_id)

    def revision(self, study_id: str) -> Revision:
        """Return the study's current revision. Much cheaper than `study`, for polling."""
        with self.database.read() as connection:
            return queries.revision(connection, study_id)

    def studies(
        self, *, limit: int = 50, offset: int = 0, **filters: Unpack[StudyFilter]
    ) -> list[StudyRecord]:
        """Return studies that match all filters, newest first."""
        with self.database.read() as connection:
            return queries.list_studies(connection, limit=limit, offset=offset, **filters)

    def claimable(self, *, limit: int = 50) -> list[StudyRecord]:
        """Return studies that should run (QUEUED, RUNNING, STOPPING) but are not leased, in the
        order in which they will be started."""
        with self.database.read() as connection:
            return queries.claimable(
                connection, self.database.server_now_us(connection), limit=limit
            )

    def waiting(self) -> list[tuple[str, str]]:
        """Return id and owner of the queued studies, in the order in which they will be started,
        which alternates between owners."""
        with self.database.read() as connection:
            rows = queries.waiting(connection, self.database.server_now_us(connection))
        return [(row.id, row.owner) for row in rows]

    def trials(self, study_id: str, *, numbers: Collection[int] | None = None) -> list[Trial]:
        """Return the trials of a study, sorted by number; with `numbers`, only these."""
        with self.database.read() as connection:
            return queries.list_trials(connection, study_id, numbers)

    def events(
        self, study_id: str, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> list[HistoryEvent]:
        """Return events of the history after this sequence number, in order: the first `limit`
        events, or with `newest` the last `limit`."""
        with self.database.read() as connection:
            key, full_id = queries.resolve(connection, study_id)
            return history.read(connection, key, full_id, after=after, limit=limit, newest=newest)

    def record_event(self, study_id: str, kind: str, data: Mapping[str, Any]) -> None:
        """Append an event to the history, e.g. who requested a pause."""
        with self.database.write() as connection:
            history.append(connection, locking.find(connection, study_id).key, [(kind, data)])

    def delete(self, study_id: str, *, learners: Sequence[str] = ()) -> None:
        """Permanently remove a study that has ended, and note that in the histories of
        `learners`."""
        with self.database.write(durable=True) as connection:
            lifecycle.delete_study(connection, study_id, learners)

    def claim(self, study_id: str, owner: str, *, lease_s: float) -> Lease | None:
        """Claim the lease; None while another holder has it."""
        with self.database.write() as connection:
            return locking.claim(self.database, connection, study_id, owner, lease_s)

    def holder(self, study_id: str) -> Lease | None:
        """Return the current lease, which may have expired; None if there is none."""
        with self.database.read() as connection:
            return locking.holder(connection, study_id)

    def is_held(self, study_id: str) -> bool:
        """Return whether the study has a lease that has not expired, by the clock of the store."""
        with self.database.read() as connection:
            return locking.is_held(self.database, connection, study_id)

    def renew(self, lease: Lease, *, lease_s: float) -> Lease:
        """Renew the lease, and return it with its new expiry."""
        with self.database.write() as connection:
            return locking.renew(self.database, connection, lease, lease_s)

    def release(self, lease: Lease) -> None:
        """Release the lease."""
        with self.database.write() as connection:
            locking.release(connection, lease)

    def keep_decision(self, lease: Lease, decision: Decision) -> None:
        """Store a decision in one transaction. Under a lease that was taken over, store its
        measurements as late reports and raise `ConflictError`."""
        with self.database.write(durable=decisions.is_durable(decision)) as connection:
            try:
                return decisions.keep(self.database, connection, lease, decision)
            except locking.FencedError as error:
                decisions.keep_late(connection, error, lease, decision)
                fenced: ConflictError = error
        raise fenced

    def adopt_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        """Store that an attempt started by an earlier holder continues under this lease."""
        with self.database.write() as connection:
            trials.adopt_attempt(connection, lease, number, attempt)

    def add_steps(self, lease: Lease, steps: Sequence[StepsReported]) -> None:
        """Store step metrics in bulk."""
        if steps:
            with self.database.write() as connection:
                trials.add_steps(connection, lease, steps)

    def steps(
        self, study_id: str, number: int, *, attempt: int | None = None
    ) -> dict[str, list[float]]:
        """Return step metrics of a trial's attempt: step, step_time_s, loss, grad_norm."""
        with self.database.read() as connection:
            return queries.steps(connection, study_id, number, attempt)

    def want(self, study_id: str, wanted: Wanted, *, message: str = "") -> StudyRecord:
        """Store what users request of the study."""
        with self.database.write(durable=True) as connection:
            lifecycle.want(connection, study_id, wanted, message)
            return queries.study(connection, study_id)

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
        """Change the study's status and fields. Raises `ConflictError` if its status is not one of
        `expect`."""
        with self.database.write(durable=True) as connection:
            lifecycle.set_status(
                self.database,
                connection,
                study_id,
                status,
                expect=expect,
                message=message,
                lease=lease,
                wanted=wanted,
                fields=fields,
            )
            return queries.study(connection, study_id)

    def best(
        self, *, one_each: bool = False, limit: int = 10, **filters: Unpack[HistoryFilter]
    ) -> list[tuple[StudyRecord, Trial]]:
        """Return the best measured trials across all studies, sorted by their standing in tokens/s
        per GPU, one for each workload and config."""
        with self.database.read() as connection:
            return queries.best(connection, one_each=one_each, limit=limit, **filters)

    def known_workloads(self) -> list[KnownWorkload]:
        """Return all workloads with measurements. Their `key` is the filter `workload` of
        `best`."""
        with self.database.read() as connection:
            return queries.known_workloads(connection)

    def statistics(self) -> Statistics:
        """Return counts of studies and trials by status, and of failures by kind."""
        with self.database.read() as connection:
            return queries.statistics(connection, self.database.server_now_us(connection))

    def ping(self) -> None:
        """Commit a write transaction that changes nothing. Raises `StoreUnavailableError` if the
        store cannot be written."""
        with self.database.write() as connection:
            connection.execute(text("SELECT 1"))

    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        """Store the cost model's constants for a cluster (or GPU type) and trainer, replacing
        earlier ones."""
        with self.database.write(durable=True) as connection:
            shared_measurements.save_calibration(connection, cluster, trainer, values)

    def calibration(self, cluster: str, trainer: str) -> dict[str, Any] | None:
        """Return the constants stored under exactly these names; None if there are none."""
        with self.database.read() as connection:
            return shared_measurements.calibration(connection, cluster, trainer)

    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Store a profile of a model's training, replacing an earlier one."""
        with self.database.write() as connection:
            shared_measurements.save_profile(connection, fingerprint, values)

    def profile(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the profile stored under exactly this fingerprint; None if there is none."""
        with self.database.read() as connection:
            return shared_measurements.profile(connection, fingerprint)

    def keep_observed(self, run: ObservedRun) -> ObservedRun:
        """Store a run that a user started, and return it with its id."""
        with self.database.write(durable=True) as connection:
            return replace(run, id=observed.keep(connection, run))

    def observed(
        self, *, limit: int = 50, offset: int = 0, **filters: Unpack[ObservedFilter]
    ) -> list[ObservedRun]:
        """Return observed runs that match all filters, the last stored one first."""
        with self.database.read() as connection:
            return list(observed.read(connection, limit=limit, offset=offset, **filters))

    def save_reference_losses(
        self, model: str, data: str, seed: int, losses: Sequence[float]
    ) -> None:
        """Store the losses of the fp32 reference by step. A shorter series does not replace a
        longer one."""
        with self.database.write() as connection:
            shared_measurements.save_reference_losses(connection, model, data, seed, losses)

    def reference_losses(self, model: str, data: str, seed: int) -> tuple[float, ...] | None:
        """Return the losses stored for this model (name or fingerprint), data and seed; None if
        there are none."""
        with self.database.read() as connection:
            return shared_measurements.find_reference_losses(connection, model, data, seed)

    def record_audit(
        self, actor: str, action: str, subject: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        """Append an event to the audit log."""
        with self.database.write() as connection:
            append_audit(connection, actor, action, subject, data or {})

    def audit_events(self, *, after: int | None = None, limit: int = 1000) -> list[AuditEvent]:
        """Return the newest events of the audit log, or with `after` the first ones after this
        number, in order."""
        with self.database.read() as connection:
            return read_audit(connection, after=after, limit=limit)

    def close(self) -> None:
        """Close all connections."""
        self.database.close()
