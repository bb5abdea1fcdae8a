"""A store in plain dictionaries, written by hand from `autotune.ports` alone: it shows that the protocol says all that is asked of a store.

It lives as long as its process. Each method holds one lock, so that threads may share it.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from autotune.errors import ConflictError, NotFoundError, SpecError
from autotune.ports import (
    SCOPES,
    AuditEvent,
    CloseAttempt,
    Decision,
    EndTrial,
    Fact,
    HistoryEvent,
    KeepNote,
    KeepSteps,
    KeepTrial,
    KnownWorkload,
    Lease,
    Revision,
    StartAttempt,
    Statistics,
    StepsReported,
    StudyFields,
    StudyNote,
    StudyRecord,
    Token,
)
from autotune.reward import speeds_in_finals, standing
from autotune.spec import (
    Failure,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
    Wanted,
    Workload,
)
from autotune.spec.annotation import check_tag_count, checked_note, checked_tags
from autotune.spec.plain import is_same_study
from autotune.spec.study import SIMULATED

P = ParamSpec("P")
T = TypeVar("T")
ACTIVE = (StudyStatus.QUEUED, StudyStatus.RUNNING, StudyStatus.STOPPING)


@dataclass(slots=True)
class Attempt:
    """One launch of a trial."""

    fence: int
    is_open: bool = True
    steps: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """step -> (time, loss, gradient norm)"""


@dataclass(slots=True)
class Kept:
    """A study with all that belongs to it."""

    record: StudyRecord
    events: list[HistoryEvent] = field(default_factory=list)
    trials: dict[int, Trial] = field(default_factory=dict)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    lease: Lease | None = None
    fence: int = 0
    notes: list[StudyNote] = field(default_factory=list)

    def note(self, kind: str, **data: Any) -> None:
        """Appends to the history."""
        now = datetime.now(UTC)
        event = HistoryEvent(study=self.record.id, sequence=len(self.events) + 1, at=now, kind=kind, data=plain(data))
        self.events.append(event)
        self.record = replace(self.record, updated_at=now)

    def seen(self) -> StudyRecord:
        """The record with its trials counted."""
        return replace(self.record, trial_counts=dict(Counter(str(t.status) for t in self.trials.values())))

    def trial(self, number: int) -> Trial:
        """The trial of that number."""
        if number not in self.trials:
            raise NotFoundError(f"study {self.record.id} has no trial {number}")
        return self.trials[number]

    def attempt(self, number: int, attempt: int) -> Attempt:
        """That attempt of that trial."""
        if (number, attempt) not in self.attempts:
            raise NotFoundError(f"trial {number} of study {self.record.id} has no attempt {attempt}")
        return self.attempts[number, attempt]

    def close_attempts(self, number: int) -> None:
        """No attempt of the trial runs any more."""
        for (of, _), attempt in self.attempts.items():
            attempt.is_open = attempt.is_open and of != number

    def refuse_if_ended(self) -> None:
        """Terminal states never change."""
        if self.record.status.is_terminal:
            raise ConflictError(f"study {self.record.id} is {self.record.status}, which never changes")


def locked(method: Callable[Concatenate[DictStore, P], T]) -> Callable[Concatenate[DictStore, P], T]:
    """The method, one call at a time."""

    @functools.wraps(method)
    def call(self: DictStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **kwargs)

    return call


class DictStore:
    """Implements `autotune.ports.ServiceStore`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._studies: dict[str, Kept] = {}  # in the order of submission
        self._submissions: dict[tuple[str, str], tuple[Study, Any, str]] = {}
        self._calibrations: dict[tuple[str, str], Any] = {}
        self._profiles: dict[str, Any] = {}
        self._losses: dict[tuple[str, str, int], tuple[float, ...]] = {}
        self._workloads: list[Workload] = []
        self._audit: list[AuditEvent] = []
        self._tokens = DictTokens()
        self._annotations = DictAnnotations(self)

    # -- StudyReader

    @locked
    def study(self, study_id: str) -> StudyRecord:
        return self._find(study_id).seen()

    @locked
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
        tag: str = "",
        limit: int = 50,
        offset: int = 0,
    ) -> list[StudyRecord]:
        def matches(record: StudyRecord) -> bool:
            study, workload = record.study, record.study.workload
            pairs = (
                (model, workload.model.name),
                (cluster, workload.cluster.name),
                (trainer, workload.trainer),
                (owner, record.owner),
                (name, study.name),
                (runner, study.runner),
            )
            return (
                all(wanted in ("", found) for wanted, found in pairs)
                and status in (None, record.status)
                and (not tag or tag in record.tags)
                and (not without_runner or study.runner != without_runner)
                and (ended_before is None or (record.ended_at is not None and record.ended_at < ended_before))
            )

        found = [kept.seen() for kept in reversed(self._studies.values()) if matches(kept.record)]
        return found[offset : offset + limit]

    @locked
    def trials(self, study_id: str, *, numbers: Collection[int] | None = None) -> list[Trial]:
        found = sorted(self._find(study_id).trials.items())
        return [trial for number, trial in found if numbers is None or number in numbers]

    @locked
    def revision(self, study_id: str) -> Revision:
        kept = self._find(study_id)
        updated_us = round(kept.record.updated_at.timestamp() * 1e6)
        return Revision(id=kept.record.id, events=len(kept.events), updated_us=updated_us)

    @locked
    def events(self, study_id: str, *, after: int = 0, limit: int = 1000, newest: bool = False) -> list[HistoryEvent]:
        found = self._find(study_id).events[after:]
        return found[-limit:] if newest else found[:limit]

    @locked
    def steps(self, study_id: str, number: int, *, attempt: int | None = None) -> dict[str, list[float]]:
        kept = self._find(study_id)
        last = kept.trial(number).attempts
        steps = kept.attempt(number, attempt or last).steps if attempt or last else {}
        columns = [list(column) for column in zip(*(steps[step] for step in sorted(steps)), strict=True)]
        times, losses, norms = columns or ([], [], [])
        return {"step": [*map(float, sorted(steps))], "step_time_s": times, "loss": losses, "grad_norm": norms}

    @locked
    def holder(self, study_id: str) -> Lease | None:
        return self._exact(study_id).lease

    @locked
    def is_held(self, study_id: str) -> bool:
        return is_held(self._exact(study_id))

    @locked
    def claimable(self, *, limit: int = 50) -> list[StudyRecord]:
        kept = [k.seen() for k in self._studies.values() if k.record.status in ACTIVE and not is_held(k)]
        begun = [record for record in kept if record.status is not StudyStatus.QUEUED]
        return [*begun, *(self._exact(study).seen() for study, _ in self.waiting())][:limit]

    @locked
    def waiting(self) -> list[tuple[str, str]]:
        running, last, order = Counter[str](), dict[str, float](), []
        for kept in self._studies.values():
            record = kept.record
            running[record.owner] += is_held(kept)
            began = record.started_at.timestamp() if record.started_at else 0.0
            last[record.owner] = max(last.get(record.owner, 0.0), began)
        for at, kept in enumerate(self._studies.values()):
            record = kept.record
            if record.status is StudyStatus.QUEUED and not is_held(kept):
                running[record.owner] += 1
                order.append((running[record.owner], last[record.owner], at, record.id, record.owner))
        return [(study, owner) for *_, study, owner in sorted(order)]

    # -- HistoryReader

    @locked
    def best(
        self,
        *,
        model: str = "",
        cluster: str = "",
        trainer: str = "",
        gpu: str = "",
        num_gpus: int | None = None,
        seq_len: int | None = None,
        owner: str = "",
        workload: int | None = None,
        runner: str = "",
        without_runner: str = "",
        one_each: bool = False,
        measured_after: datetime | None = None,
        limit: int = 10,
    ) -> list[tuple[StudyRecord, Trial]]:
        def matches(kept: Kept) -> bool:
            w, record = kept.record.study.workload, kept.record
            pairs = (
                (model, w.model.name),
                (cluster, w.cluster.name),
                (trainer, w.trainer),
                (gpu, w.cluster.gpu.name),
                (num_gpus, w.cluster.num_gpus),
                (seq_len, w.seq_len),
                (owner, record.owner),
                (workload, self._workloads.index(w) + 1),
                (runner, record.study.runner),
            )
            is_left_out = bool(without_runner) and record.study.runner == without_runner
            return all(wanted in ("", None, found) for wanted, found in pairs) and not is_left_out

        found = [(speed, kept, trial) for speed, kept, trial in self._representatives() if matches(kept)]
        if measured_after is not None:
            found = [row for row in found if row[2].ended_at is not None and row[2].ended_at > measured_after]
        found.sort(key=lambda row: (-stands_at(*row), -row[0]))
        if one_each:
            first: dict[tuple[str, str], tuple[float, Kept, Trial]] = {}
            for row in found:
                w = row[1].record.study.workload
                first.setdefault((w.model.name, w.cluster.name), row)
            found = sorted(first.values(), key=lambda row: row[1].record.created_at, reverse=True)
        return [(kept.seen(), trial) for _, kept, trial in found[:limit]]

    @locked
    def known_workloads(self) -> list[KnownWorkload]:
        known = []
        for key, workload in enumerate(self._workloads, 1):
            measured = [trial for _, kept, trial in self._representatives() if kept.record.study.workload == workload]
            if newest := max((trial.ended_at for trial in measured if trial.ended_at is not None), default=None):
                known.append((newest, KnownWorkload(key=key, workload=workload, configs=len(measured))))
        return [workload for _, workload in sorted(known, key=lambda pair: pair[0], reverse=True)]

    # -- StudyWriter

    @locked
    def submit(
        self,
        study: Study,
        spec: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        owner: str = "",
        join: bool = False,
    ) -> StudyRecord:
        asked, key = (study, plain(spec)), (owner, idempotency_key or "")
        if idempotency_key is not None and key in self._submissions:
            *before, study_id = self._submissions[key]
            if before != [*asked]:
                raise ConflictError("the idempotency key was used for another spec", field="idempotency_key")
            return self.study(study_id)
        for kept in reversed(self._studies.values()) if join else ():
            found = kept.record
            is_open = not found.status.is_terminal and found.wanted is not Wanted.CANCEL
            if is_open and found.study.name == study.name and is_same_study(found.study, found.spec, study, spec):
                return kept.seen()
        study_id, now = f"d{secrets.token_hex(5)}", datetime.now(UTC)
        status = StudyStatus.QUEUED
        kept = Kept(
            StudyRecord(
                id=study_id, study=study, spec=asked[1], status=status, created_at=now, updated_at=now, owner=owner
            )
        )
        self._studies[study_id] = kept
        if study.workload not in self._workloads:
            self._workloads.append(study.workload)
        if idempotency_key is not None:
            self._submissions[key] = (*asked, study_id)
        kept.note("study.submitted", name=study.name, owner=owner)
        return kept.seen()

    @locked
    def want(self, study_id: str, wanted: Wanted, *, message: str = "") -> StudyRecord:
        kept = self._exact(study_id)
        kept.refuse_if_ended()
        before = kept.record.wanted
        if not before.may_become(wanted):
            raise ConflictError(f"study {study_id} was asked to {before} and cannot {wanted} any more")
        if before is not wanted:
            kept.record = replace(kept.record, wanted=wanted, wanted_at=datetime.now(UTC), message=message)
            kept.note("study.wanted", **{"wanted": wanted, "from": before, "message": message})
        return kept.seen()

    @locked
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
        kept = self._exact(study_id) if lease is None else self._held(lease)
        kept.refuse_if_ended()
        before, now = kept.record, datetime.now(UTC)
        message = before.message if message is None else message
        if lease is None and is_held(kept):
            raise ConflictError(f"study {study_id} is being run, and only its controller changes its status")
        if wanted not in (None, before.wanted):
            raise ConflictError(f"study {study_id} is wanted to {before.wanted}")
        if before.status not in expect:
            raise ConflictError(f"study {study_id} must be one of {expect} to become {status}, but is {before.status}")
        if "result" in fields:
            fields["result"] = plain(fields["result"])
        kept.record = replace(
            before,
            status=status,
            message=message,
            updated_at=now,
            started_at=before.started_at or (now if status is StudyStatus.RUNNING else None),
            ended_at=now if status.is_terminal else None,
            **fields,
        )
        for number, trial in kept.trials.items() if status.is_terminal else ():
            if not trial.status.is_terminal:
                kept.trials[number] = replace(trial, status=TrialStatus.CANCELLED, ended_at=now)
                kept.close_attempts(number)
                kept.note("trial.ended", number=number, status="CANCELLED", attempts=trial.attempts)
        if (status, message) != (before.status, before.message):
            kept.note(f"study.{status.lower()}", **{"from": before.status, "message": message})
        return kept.seen()

    @locked
    def record_event(self, study_id: str, kind: str, data: Mapping[str, Any]) -> None:
        self._exact(study_id).note(kind, **data)

    @locked
    def delete(self, study_id: str, *, learners: Sequence[str] = ()) -> None:
        if not self._exact(study_id).record.status.is_terminal:
            raise ConflictError(f"study {study_id} has not ended")
        del self._studies[study_id]
        self._submissions = {key: value for key, value in self._submissions.items() if value[2] != study_id}
        for learner in learners:
            self._exact(learner).note("history.deleted", study=study_id)

    # -- LeaseKeeper

    @locked
    def claim(self, study_id: str, owner: str, *, lease_s: float) -> Lease | None:
        kept = self._exact(study_id)
        kept.refuse_if_ended()
        if is_held(kept):
            return None
        kept.fence += 1
        kept.lease = Lease(study=study_id, owner=owner, fence=kept.fence, expires_at=in_s(lease_s))
        kept.note("study.claimed", owner=owner, fence=kept.fence)
        return kept.lease

    @locked
    def renew(self, lease: Lease, *, lease_s: float) -> Lease:
        kept = self._held(lease)
        kept.lease = replace(lease, expires_at=in_s(lease_s))
        return kept.lease

    @locked
    def release(self, lease: Lease) -> None:
        kept = self._exact(lease.study)
        if is_of(kept, lease):
            kept.lease = None
            kept.note("study.released", owner=lease.owner, fence=lease.fence)

    # -- TrialWriter

    @locked
    def keep_decision(self, lease: Lease, decision: Decision) -> None:
        try:
            kept = self._held(lease)
        except ConflictError:
            for fact in decision.facts:
                if isinstance(fact, EndTrial) and fact.trial.is_measured:
                    self._exact(lease.study).note("trial.late", number=fact.trial.number, trial=fact.trial.to_dict())
            raise
        if decision.number == kept.record.decisions:
            return
        if decision.number != kept.record.decisions + 1:
            raise ConflictError(f"the next decision is {kept.record.decisions + 1}, but this one is {decision.number}")
        before = copy.deepcopy((kept.record, kept.events, kept.trials, kept.attempts))
        try:
            kept.record = replace(kept.record, decisions=decision.number)
            kept.note("study.decided", decision=decision.number, cause=decision.cause)
            for fact in decision.facts:
                self._keep(lease, fact)
            if decision.fields or decision.status or decision.message is not None or decision.wanted:
                self.set_status(
                    lease.study,
                    decision.status or kept.record.status,
                    expect=[kept.record.status],
                    message=decision.message,
                    lease=lease,
                    wanted=decision.wanted,
                    **decision.fields,
                )
        except BaseException:
            kept.record, kept.events, kept.trials, kept.attempts = before
            raise

    def _keep(self, lease: Lease, fact: Fact) -> None:
        match fact:
            case KeepTrial(trial=trial):
                self._add_trial(lease, trial)
            case StartAttempt(request=request):
                self._start_attempt(lease, request.number, request.attempt)
            case KeepSteps(steps=steps):
                self.add_steps(lease, [steps])
            case CloseAttempt(number=number, attempt=attempt, failure=failure):
                self._end_attempt(lease, number, attempt, failure)
            case EndTrial(trial=trial):
                self._end_trial(lease, trial)
            case KeepNote(kind=kind, data=data):
                self._exact(lease.study).note(kind, **data)

    def _add_trial(self, lease: Lease, trial: Trial) -> None:
        kept = self._held(lease)
        known = kept.trials.get(trial.number)
        if known is not None and (known.config, known.seed, known.purpose) == (trial.config, trial.seed, trial.purpose):
            return
        if trial.number != len(kept.trials):
            raise ConflictError(f"trials are numbered without gaps: the next is {len(kept.trials)}")
        kept.refuse_if_ended()
        kept.trials[trial.number] = replace(trial, study=lease.study, created_at=datetime.now(UTC))
        kept.note("trial.asked", number=trial.number, config=str(trial.config), purpose=trial.purpose)

    def _start_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        kept = self._held(lease)
        trial = kept.trial(number)
        if trial.status is TrialStatus.RUNNING and trial.attempts == attempt:
            return
        if trial.status.is_terminal:
            raise ConflictError(f"trial {number} is {trial.status} and cannot be started")
        if attempt != trial.attempts + 1:
            raise ConflictError(f"the next attempt of trial {number} is {trial.attempts + 1}, but is {attempt}")
        if trial.attempts and kept.attempt(number, trial.attempts).is_open:
            raise ConflictError(f"attempt {trial.attempts} of trial {number} still runs")
        started_at = trial.started_at or datetime.now(UTC)
        kept.trials[number] = replace(trial, status=TrialStatus.RUNNING, attempts=attempt, started_at=started_at)
        kept.attempts[number, attempt] = Attempt(fence=lease.fence)
        kept.note("trial.started", number=number, attempt=attempt)

    @locked
    def adopt_attempt(self, lease: Lease, number: int, attempt: int) -> None:
        kept = self._held(lease)
        trial, running = kept.trial(number), kept.attempt(number, attempt)
        if trial.status is not TrialStatus.RUNNING or trial.attempts != attempt or not running.is_open:
            raise ConflictError(f"attempt {attempt} of trial {number} does not run")
        if running.fence != lease.fence:
            running.fence = lease.fence
            kept.note("trial.adopted", number=number, attempt=attempt)

    @locked
    def add_steps(self, lease: Lease, steps: Sequence[StepsReported]) -> None:
        kept = self._held(lease)
        for report in steps:
            study_id, number, attempt = report.id
            if study_id != lease.study:
                raise ConflictError(f"a report of study {study_id} came with the lease of study {lease.study}")
            values = zip(report.step_times_s, report.losses, report.grad_norms, strict=True)
            series = kept.attempt(number, attempt).steps
            for step, value in enumerate(values, report.first_step):
                series.setdefault(step, value)

    def _end_attempt(self, lease: Lease, number: int, attempt: int, failure: Failure) -> None:
        kept = self._held(lease)
        if kept.attempt(number, attempt).is_open:
            kept.close_attempts(number)
            kept.note("attempt.ended", number=number, attempt=attempt, failure=failure.to_dict())

    def _end_trial(self, lease: Lease, trial: Trial) -> None:
        kept = self._held(lease)
        asked = kept.trial(trial.number)
        if asked.config != trial.config:
            raise ConflictError(f"trial {trial.number} was asked with another config: {asked.config}")
        if asked.status.is_terminal:
            kept.note("trial.late", number=trial.number, trial=trial.to_dict())
            return
        if reason := why_no_end(asked, trial):
            raise ConflictError(f"trial {trial.number} cannot be {trial.status}: {reason}")
        kept.trials[trial.number] = replace(
            trial,
            study=lease.study,
            created_at=asked.created_at,
            started_at=asked.started_at,
            ended_at=trial.ended_at or datetime.now(UTC),
            attempts=asked.attempts,
            estimate=trial.estimate or asked.estimate,
            reason=trial.reason or asked.reason,
        )
        kept.close_attempts(trial.number)
        kept.note("trial.ended", number=trial.number, status=trial.status, attempts=asked.attempts)

    # -- CalibrationStore, ProfileStore, ReferenceLossStore

    @locked
    def calibration(self, cluster: str, trainer: str) -> Mapping[str, Any] | None:
        return self._calibrations.get((cluster, trainer))

    @locked
    def save_calibration(self, cluster: str, trainer: str, values: Mapping[str, Any]) -> None:
        self._calibrations[cluster, trainer] = plain(values)

    @locked
    def profile(self, fingerprint: str) -> Mapping[str, Any] | None:
        return self._profiles.get(fingerprint)

    @locked
    def save_profile(self, fingerprint: str, values: Mapping[str, Any]) -> None:
        self._profiles[fingerprint] = plain(values)

    @locked
    def reference_losses(self, model: str, data: str, seed: int) -> tuple[float, ...] | None:
        return self._losses.get((model, data, seed))

    @locked
    def save_reference_losses(self, model: str, data: str, seed: int, losses: Sequence[float]) -> None:
        key = (model, data, seed)
        self._losses[key] = max(self._losses.get(key, ()), tuple(losses), key=len)

    def close(self) -> None:
        """There is nothing to let go of."""

    # -- AuditLog, StoreMonitor, tokens

    @locked
    def record_audit(self, actor: str, action: str, subject: str = "", data: Mapping[str, Any] | None = None) -> None:
        at, number = datetime.now(UTC), len(self._audit) + 1
        line = AuditEvent(
            sequence=number, at=at, actor=actor, action=action, subject=subject, data=plain(dict(data or {}))
        )
        self._audit.append(line)

    @locked
    def audit_events(self, *, after: int | None = None, limit: int = 1000) -> list[AuditEvent]:
        return self._audit[-limit:] if after is None else self._audit[after : after + limit]

    @locked
    def statistics(self) -> Statistics:
        trials = [trial for kept in self._studies.values() for trial in kept.trials.values()]
        return Statistics(
            studies=Counter(str(kept.record.status) for kept in self._studies.values()),
            trials=Counter(str(trial.status) for trial in trials),
            failures=Counter(str(trial.failure.kind) for trial in trials if trial.failure is not None),
            leased=sum(is_held(kept) for kept in self._studies.values()),
        )

    def ping(self) -> None:
        """Memory can always be written."""

    @property
    def annotations(self) -> DictAnnotations:
        return self._annotations

    @property
    def tokens(self) -> DictTokens:
        return self._tokens

    # -- what these are made of

    def _exact(self, study_id: str) -> Kept:
        if study_id not in self._studies:
            raise NotFoundError(f"no study has the id {study_id!r}")
        return self._studies[study_id]

    def _find(self, study_id: str) -> Kept:
        if study_id in self._studies:
            return self._studies[study_id]
        named = [kept for kept in self._studies.values() if kept.record.study.name == study_id]
        begun = [kept for key, kept in self._studies.items() if key.startswith(study_id)]
        if named or len(begun) == 1:
            return (named or begun)[-1]
        raise NotFoundError(f"no study, or more than one, has the id or name {study_id!r}")

    def _held(self, lease: Lease) -> Kept:
        kept = self._exact(lease.study)
        if not is_of(kept, lease):
            raise ConflictError(f"the lease on study {lease.study} is no longer held by {lease.owner}")
        return kept

    def _measured(self) -> list[tuple[float, Kept, Trial]]:
        """All measured trials with tokens per second and GPU of the cluster, in the order of submission."""
        return [
            (trial.measurement.tokens_per_s / kept.record.study.workload.cluster.num_gpus, kept, trial)
            for kept in self._studies.values()
            for trial in kept.trials.values()
            if trial.is_measured and trial.purpose is not TrialPurpose.PROXY and trial.measurement is not None
        ]

    def _representatives(self) -> list[tuple[float, Kept, Trial]]:
        """The median trial of each workload and config; of simulated ones only where there is no real one."""
        alike: dict[tuple[int, ParallelConfig], list[tuple[float, Kept, Trial]]] = {}
        for row in self._measured():
            workload = self._workloads.index(row[1].record.study.workload)
            alike.setdefault((workload, row[2].config), []).append(row)
        chosen = []
        for rows in alike.values():
            real = [row for row in rows if row[1].record.study.runner != SIMULATED] or rows
            chosen.append(sorted(real, key=lambda row: row[0])[(len(real) - 1) // 2])
        return chosen


def stands_at(speed: float, kept: Kept, trial: Trial) -> float:
    """The tokens per second and GPU of the cluster at which the trial's config stands."""
    num_gpus = kept.record.study.workload.cluster.num_gpus
    speeds = {config: found / num_gpus for config, found in speeds_in_finals(kept.record.result).items()}
    return standing(trial.config, speed, speeds)


class DictAnnotations:
    """Implements `autotune.ports.AnnotationStore`."""

    def __init__(self, store: DictStore) -> None:
        self._store = store

    def notes(self, study_id: str) -> list[StudyNote]:
        with self._store._lock:
            return list(self._store._find(study_id).notes)

    def add_note(self, study_id: str, text: str, *, author: str = "") -> StudyNote:
        with self._store._lock:
            kept = self._store._find(study_id)
            text = checked_note(text, notes=len(kept.notes))
            if kept.notes and (kept.notes[-1].author, kept.notes[-1].text) == (author, text):
                return kept.notes[-1]
            kept.note("study.noted", author=author)
            note = StudyNote(number=len(kept.events), at=datetime.now(UTC), author=author, text=text)
            kept.notes.append(note)
            return note

    def remove_note(self, study_id: str, number: int, *, author: str = "") -> None:
        with self._store._lock:
            kept = self._store._find(study_id)
            rest = [note for note in kept.notes if note.number != number]
            if len(rest) == len(kept.notes):
                raise NotFoundError(f"study {study_id} has no note {number}")
            kept.notes = rest
            kept.note("study.note_removed", note=number, author=author)

    def change_tags(
        self, study_id: str, *, add: Iterable[str] = (), remove: Iterable[str] = (), author: str = ""
    ) -> StudyRecord:
        added = set(checked_tags(add))
        with self._store._lock:
            kept = self._store._find(study_id)
            before = set(kept.record.tags)
            after = before - set(remove) | added
            check_tag_count(len(after))
            if after != before:
                kept.record = replace(kept.record, tags=tuple(sorted(after)))
                new, gone = sorted(after - before), sorted(before - after)
                kept.note("study.tagged", added=new, removed=gone, author=author)
            return kept.seen()


class DictTokens:
    """Implements `autotune.ports.TokenStore`."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}  # by their texts

    def create(self, owner: str, scope: str, *, expires_in_s: float | None = None) -> tuple[Token, str]:
        if scope not in SCOPES or (expires_in_s is not None and expires_in_s <= 0):
            raise SpecError(f"a token has a scope of {SCOPES} and lives longer than 0 s", field="scope")
        text = f"at_{secrets.token_hex(6)}_{secrets.token_hex(16)}"
        expires_at = None if expires_in_s is None else in_s(expires_in_s)
        now = datetime.now(UTC)
        token = Token(id=text.split("_")[1], owner=owner, scope=scope, created_at=now, expires_at=expires_at)
        self._tokens[text] = token
        return token, text

    def check(self, text: str) -> Token | None:
        token = self._tokens.get(text)
        if token is None or token.revoked_at or (token.expires_at and token.expires_at <= datetime.now(UTC)):
            return None
        return token

    def revoke(self, token_id: str) -> Token:
        for text, token in self._tokens.items():
            if token.id == token_id:
                self._tokens[text] = replace(token, revoked_at=token.revoked_at or datetime.now(UTC))
                return self._tokens[text]
        raise NotFoundError(f"no token has the id {token_id!r}")

    def list(self) -> Sequence[Token]:
        return [*self._tokens.values()]


def plain(values: Any) -> Any:
    """The values as JSON would bring them back; numbers that JSON has not are None."""
    if isinstance(values, Mapping):
        return {str(key): plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return json.loads(json.dumps(values))


def is_of(kept: Kept, lease: Lease) -> bool:
    """Whether that lease is the one that counts."""
    return kept.lease is not None and (kept.lease.owner, kept.lease.fence) == (lease.owner, lease.fence)


def is_held(kept: Kept) -> bool:
    """Whether somebody's lease is in force."""
    return kept.lease is not None and kept.lease.expires_at > datetime.now(UTC)


def in_s(seconds: float) -> datetime:
    """The moment in so many seconds."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def why_no_end(asked: Trial, end: Trial) -> str:
    """Why a trial cannot end so, in words; empty when it can."""
    if not end.status.is_terminal:
        return "only terminal states end a trial"
    if end.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED):
        if not end.is_measured:
            return "it has no measurement"
        return "" if asked.status is TrialStatus.RUNNING else "it was never started"
    return "it has no failure" if end.status is TrialStatus.FAILED and end.failure is None else ""
