"""Writes of a running study: trials added, attempts started and ended, steps reported, trials
ended. Each is a compare-and-set.

A controller that did not receive an acknowledgement may repeat the write: adding the same trial
again, or starting or closing the same attempt again, is acknowledged and changes nothing. Any other
write that the current state does not allow raises `ConflictError`. A trial ends once; later reports
are stored in the history as `trial.late`.

SQL statements are built once, because building them costs more than running them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import EventKind, Lease, StepsReported
from autotune.spec import Failure, Trial, TrialStatus
from autotune.store.connection.database import now_us
from autotune.store.packing import append_steps
from autotune.store.rows import ended_columns, json_text, new_trial_row, read_trial
from autotune.store.tables import attempts, trials, workloads
from autotune.store.upkeep.checksums import changes_with_checksum, with_checksum
from autotune.store.writes import locking
from autotune.store.writes.best_trials import update_records
from autotune.store.writes.history import NewEvent, append
from autotune.store.writes.submissions import workload_key

OPEN = (str(TrialStatus.PENDING), str(TrialStatus.RUNNING))

_TRIAL = (
    select(trials, workloads.c.num_gpus)
    .join(workloads, workloads.c.key == trials.c.workload)
    .where(trials.c.study == bindparam("of_study"), trials.c.number == bindparam("of_number"))
)
_ADD = insert(trials)
_RUN = (
    update(trials)
    .where(trials.c.key == bindparam("of_key"))
    .values(
        status=bindparam("status"),
        attempts=bindparam("attempts"),
        started_us=bindparam("started_us"),
        checksum=bindparam("checksum"),
    )
)
_END = (
    update(trials)
    .where(trials.c.key == bindparam("of_key"))
    .values(
        {
            name: bindparam(name)
            for name in (
                "status",
                "failure",
                "throughput",
                "reward",
                "ended_us",
                "document",
                "checksum",
            )
        }
    )
)
_ATTEMPT = select(attempts).where(
    attempts.c.study == bindparam("of_study"),
    attempts.c.number == bindparam("of_number"),
    attempts.c.attempt == bindparam("of_attempt"),
)
_ADD_ATTEMPT = insert(attempts)
_STEPS = (
    update(attempts)
    .where(attempts.c.key == bindparam("of_key"))
    .values(steps=bindparam("steps"), checksum=bindparam("checksum"))
)
_OPEN_ATTEMPTS = select(attempts).where(
    attempts.c.study == bindparam("of_study"),
    attempts.c.number == bindparam("of_number"),
    attempts.c.ended_us.is_(None),
)
_CLOSE = (
    update(attempts)
    .where(attempts.c.key == bindparam("of_key"))
    .values(
        ended_us=bindparam("ended_us"), failure=bindparam("failure"), checksum=bindparam("checksum")
    )
)


def add(connection: Connection, lease: Lease, trial: Trial) -> None:
    """Store a new PENDING trial under the next number."""
    study = locking.hold(connection, lease)
    if trial.status is not TrialStatus.PENDING:
        raise ConflictError(
            f"a new trial must be PENDING, but trial {trial.number} is {trial.status}"
        )
    if 0 <= trial.number < study.num_trials:
        stored = read_trial(lease.study, _trial(connection, study, trial.number))
        if (stored.config, stored.seed, stored.purpose) == (
            trial.config,
            trial.seed,
            trial.purpose,
        ):
            return
    if trial.number != study.num_trials:
        raise ConflictError(
            f"trials are numbered without gaps: the next number in study {lease.study} is {study.num_trials}, "
            f"but the new trial has {trial.number}"
        )
    _check_not_ended(study)
    workload = (
        workload_key(connection, trial.stands_for.workload) if trial.stands_for else study.workload
    )
    row = new_trial_row(trial, study=study.key, workload=workload, now=now_us())
    connection.execute(_ADD, with_checksum(trials, row))
    line = {
        "number": trial.number,
        "config": str(trial.config),
        "purpose": str(trial.purpose),
        "reason": trial.reason,
        **({"stands_for": str(trial.stands_for.config)} if trial.stands_for else {}),
    }
    append(connection, study.key, [(EventKind.TRIAL_ASKED, line)], new_trials=1)


def start_attempt(connection: Connection, lease: Lease, number: int, attempt: int) -> None:
    """Set a PENDING or RUNNING trial to RUNNING with its next attempt. The previous attempt must be
    closed."""
    study = locking.hold(connection, lease)
    row = _trial(connection, study, number)
    if row.status == TrialStatus.RUNNING and row.attempts == attempt:
        return
    if row.status not in OPEN:
        raise ConflictError(
            f"only an open trial can be started, but trial {number} of study {lease.study} is {row.status.lower()}"
        )
    _check_not_ended(study)
    if attempt != row.attempts + 1:
        raise ConflictError(
            f"the next attempt of trial {number} must be {row.attempts + 1}, but is {attempt}"
        )
    if row.attempts and _attempt(connection, study, number, row.attempts).ended_us is None:
        raise ConflictError(
            f"a trial runs one attempt at a time, but attempt {row.attempts} of trial {number} is still running"
        )
    now = now_us()
    runs = {
        "status": str(TrialStatus.RUNNING),
        "attempts": attempt,
        "started_us": now if row.started_us is None else row.started_us,
    }
    connection.execute(
        _RUN, {"of_key": row.key, **changes_with_checksum(trials, row._mapping, runs)}
    )
    started = {
        "study": study.key,
        "number": number,
        "attempt": attempt,
        "fence": lease.fence,
        "started_us": now,
    }
    connection.execute(_ADD_ATTEMPT, with_checksum(attempts, {**started, "steps": b""}))
    append(
        connection, study.key, [(EventKind.TRIAL_STARTED, {"number": number, "attempt": attempt})]
    )


def adopt_attempt(connection: Connection, lease: Lease, number: int, attempt: int) -> None:
    """Store that the running attempt continues under this lease. Raises `ConflictError` if the
    attempt is not running."""
    study = locking.hold(connection, lease)
    row = _trial(connection, study, number)
    running = _attempt(connection, study, number, attempt)
    if row.status != TrialStatus.RUNNING or row.attempts != attempt or running.ended_us is not None:
        raise ConflictError(
            f"attempt {attempt} of trial {number} is not running, so it cannot be adopted"
        )
    if running.fence != lease.fence:
        changes = changes_with_checksum(attempts, running._mapping, {"fence": lease.fence})
        connection.execute(update(attempts).where(attempts.c.key == running.key).values(**changes))
        append(
            connection,
            study.key,
            [(EventKind.TRIAL_ADOPTED, {"number": number, "attempt": attempt})],
        )


def add_steps(connection: Connection, lease: Lease, steps: Sequence[StepsReported]) -> None:
    """Append the steps of each report to its attempt. Raises `NotFoundError` for an attempt that
    was never started."""
    study = locking.hold(connection, lease)
    grown: dict[tuple[int, int], tuple[Row[Any], bytes]] = {}
    for report in steps:
        of_study, number, attempt = report.id
        if of_study != lease.study:
            raise ConflictError(
                f"a report for study {of_study} came with the lease of study {lease.study}"
            )
        if (number, attempt) not in grown:
            row = _attempt(connection, study, number, attempt)
            grown[number, attempt] = (row, row.steps)
        row, packed = grown[number, attempt]
        grown[number, attempt] = (row, append_steps(packed, report))
    for row, packed in grown.values():
        connection.execute(
            _STEPS,
            {"of_key": row.key, **changes_with_checksum(attempts, row._mapping, {"steps": packed})},
        )


def end_attempt(
    connection: Connection, lease: Lease, number: int, attempt: int, failure: Failure
) -> None:
    """Close an attempt whose trial will be retried."""
    study = locking.hold(connection, lease)
    if _attempt(connection, study, number, attempt).ended_us is not None:
        return
    _close(connection, study, number, failure, now_us())
    line = {"number": number, "attempt": attempt, "failure": failure.to_dict()}
    append(connection, study.key, [(EventKind.ATTEMPT_ENDED, line)])


def end_trial(connection: Connection, lease: Lease, trial: Trial) -> None:
    """Make the trial terminal, with status, measurement, reward, failure and reason of `trial`. If
    it is terminal already, store `trial` as a late report."""
    study = locking.hold(connection, lease)
    row = _trial(connection, study, trial.number)
    stored = read_trial(lease.study, row)
    if stored.config != trial.config:
        raise ConflictError(
            f"trial {trial.number} of study {lease.study} has another config: {stored.config}"
        )
    if row.status not in OPEN:
        keep_late(connection, study.key, trial, f"already {row.status.lower()}", lease.fence)
        return
    _check_ending(trial, was_started=row.status == TrialStatus.RUNNING)
    now = now_us()
    columns = ended_columns(stored, trial, num_gpus=row.num_gpus, now=now)
    connection.execute(
        _END, {"of_key": row.key, **changes_with_checksum(trials, row._mapping, columns)}
    )
    if row.attempts:
        _close(connection, study, trial.number, trial.failure, now)
    if columns["throughput"] is not None:
        update_records(connection, row.workload, [row.config_key])
    append(
        connection,
        study.key,
        [(EventKind.TRIAL_ENDED, _ending(trial, columns["throughput"], row.attempts))],
    )


def cancel_open(connection: Connection, study: Row[Any], reason: str) -> list[NewEvent]:
    """Cancel all open trials of a study that ends, and return the events for its history."""
    still_open = (
        select(trials)
        .where(trials.c.study == study.key, trials.c.status.in_(OPEN))
        .order_by(trials.c.number)
    )
    rows = connection.execute(still_open).all()
    now, status = now_us(), str(TrialStatus.CANCELLED)
    for row in rows:
        changes = changes_with_checksum(trials, row._mapping, {"status": status, "ended_us": now})
        connection.execute(update(trials).where(trials.c.key == row.key).values(**changes))
        _close(connection, study, row.number, None, now)
    return [
        (
            EventKind.TRIAL_ENDED,
            {"number": row.number, "status": status, "attempts": row.attempts, "reason": reason},
        )
        for row in rows
    ]


def keep_late(connection: Connection, study: int, trial: Trial, why: str, fence: int) -> None:
    """Store a late report in the history, with its measurement. `why`: why it is late."""
    line: Mapping[str, Any] = {
        "number": trial.number,
        "why": why,
        "fence": fence,
        "trial": trial.to_dict(),
    }
    append(connection, study, [(EventKind.TRIAL_LATE, line)])


def _ending(trial: Trial, throughput: float | None, attempts_made: int) -> dict[str, Any]:
    """Return the data of the event `trial.ended`. `throughput`: tokens/s per GPU."""
    line: dict[str, Any] = {
        "number": trial.number,
        "status": str(trial.status),
        "attempts": attempts_made,
    }
    if throughput is not None and trial.measurement is not None:
        line["tokens_per_s_per_gpu"] = throughput
        line["tokens_per_s"] = trial.measurement.tokens_per_s
    if trial.status is TrialStatus.STOPPED and trial.reason:
        line["reason"] = trial.reason
    if trial.failure is not None:
        line["failure"] = {"kind": str(trial.failure.kind), "message": trial.failure.message}
    if trial.reward is not None:
        line["reward"] = trial.reward.total
    return line


def _close(
    connection: Connection, study: Row[Any], number: int, failure: Failure | None, now: int
) -> None:
    """Close the open attempts of a trial."""
    text = json_text(failure.to_dict()) if failure else None
    changes = {"ended_us": now, "failure": text}
    for row in connection.execute(
        _OPEN_ATTEMPTS, {"of_study": study.key, "of_number": number}
    ).all():
        connection.execute(
            _CLOSE, {"of_key": row.key, **changes_with_checksum(attempts, row._mapping, changes)}
        )


def _trial(connection: Connection, study: Row[Any], number: int) -> Row[Any]:
    """Return the row of a trial. Raises `NotFoundError`."""
    row = connection.execute(_TRIAL, {"of_study": study.key, "of_number": number}).first()
    if row is None:
        raise NotFoundError(f"study {study.id} has no trial {number}")
    return row


def _attempt(connection: Connection, study: Row[Any], number: int, attempt: int) -> Row[Any]:
    """Return the row of an attempt. Raises `NotFoundError`."""
    parameters = {"of_study": study.key, "of_number": number, "of_attempt": attempt}
    row = connection.execute(_ATTEMPT, parameters).first()
    if row is None:
        raise NotFoundError(f"trial {number} of study {study.id} has no attempt {attempt}")
    return row


def _check_ending(trial: Trial, *, was_started: bool) -> None:
    """Raise `ConflictError` if the trial's fields do not match its terminal status."""
    prefix = f"trial {trial.number} cannot be {trial.status.lower()}"
    if not trial.status.is_terminal:
        raise ConflictError(f"{prefix} when it ends; the last status must be terminal")
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED):
        if not trial.is_measured:
            raise ConflictError(f"{prefix} without a measurement")
        if not was_started:
            raise ConflictError(f"{prefix}, because it was never started")
    if trial.status is TrialStatus.FAILED and trial.failure is None:
        raise ConflictError(f"{prefix} without a failure")


def _check_not_ended(study: Row[Any]) -> None:
    """Raise `ConflictError` if the study has ended."""
    if study.status in locking.TERMINAL:
        raise ConflictError(
            f"a study that has ended takes no more trials, and study {study.id} is {study.status.lower()}",
            remedy="submit a new study",
        )
