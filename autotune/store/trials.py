"""Writes of a running study: trials asked, attempts started and ended, steps reported, trials ended. Each is a compare-and-set.

Whoever lost an acknowledgement may ask again: the same trial added again, the same attempt started or closed again are acknowledged and
change nothing. Anything else that the present state forbids is a `ConflictError`. A trial ends once: later reports are kept in the
history as `trial.late`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import Lease, StepsReported
from autotune.spec import Failure, Trial, TrialStatus
from autotune.store import lease as leases
from autotune.store.database import now_us
from autotune.store.history import append
from autotune.store.packing import append_steps
from autotune.store.records import keep_record
from autotune.store.rows import ended_columns, json_text, new_trial_row, read_trial
from autotune.store.tables import attempts, studies, trials, workloads

OPEN = (str(TrialStatus.PENDING), str(TrialStatus.RUNNING))


def add(connection: Connection, lease: Lease, trial: Trial) -> None:
    """Keeps a new PENDING trial under the next number."""
    study = leases.hold(connection, lease)
    if trial.status is not TrialStatus.PENDING:
        raise ConflictError(f"a new trial is PENDING, but trial {trial.number} is {trial.status}")
    if trial.number < study.num_trials:
        asked = read_trial(lease.study, _trial(connection, study, trial.number))
        if (asked.config, asked.seed, asked.purpose) == (trial.config, trial.seed, trial.purpose):
            return
    if trial.number != study.num_trials:
        raise ConflictError(
            f"trials are numbered without gaps: the next of study {lease.study} is {study.num_trials}, but is {trial.number}"
        )
    _refuse_terminal(study)
    connection.execute(insert(trials), new_trial_row(trial, study=study.key, workload=study.workload, now=now_us()))
    connection.execute(update(studies).where(studies.c.key == study.key).values(num_trials=studies.c.num_trials + 1))
    line = {
        "number": trial.number,
        "config": trial.config.to_dict(),
        "purpose": str(trial.purpose),
        "reason": trial.reason,
    }
    append(connection, study.key, [("trial.asked", line)])


def start_attempt(connection: Connection, lease: Lease, number: int, attempt: int) -> None:
    """PENDING or RUNNING -> RUNNING with the next attempt, after the one before it was closed."""
    study = leases.hold(connection, lease)
    row = _trial(connection, study, number)
    if row.status == TrialStatus.RUNNING and row.attempts == attempt:
        return
    if row.status not in OPEN:
        raise ConflictError(f"trial {number} of study {lease.study} is {row.status} and cannot be started")
    _refuse_terminal(study)
    if attempt != row.attempts + 1:
        raise ConflictError(f"the next attempt of trial {number} is {row.attempts + 1}, but is {attempt}")
    if row.attempts and _attempt(connection, study, number, row.attempts).ended_us is None:
        raise ConflictError(f"attempt {row.attempts} of trial {number} still runs")
    now = now_us()
    started = row.started_us if row.started_us is not None else now
    connection.execute(
        update(trials)
        .where(trials.c.key == row.key)
        .values(status=str(TrialStatus.RUNNING), attempts=attempt, started_us=started)
    )
    connection.execute(
        insert(attempts).values(
            study=study.key, number=number, attempt=attempt, fence=lease.fence, started_us=now, steps=b""
        )
    )
    append(connection, study.key, [("trial.started", {"number": number, "attempt": attempt})])


def add_steps(connection: Connection, lease: Lease, steps: Sequence[StepsReported]) -> None:
    """Keeps the series of each report. Raises `NotFoundError` for an attempt that was never started."""
    study = leases.hold(connection, lease)
    grown: dict[tuple[int, int], tuple[int, bytes]] = {}
    for report in steps:
        of_study, number, attempt = report.id
        if of_study != lease.study:
            raise ConflictError(f"a report of study {of_study} came with the lease of study {lease.study}")
        if (number, attempt) not in grown:
            row = _attempt(connection, study, number, attempt)
            grown[number, attempt] = (row.key, row.steps)
        key, packed = grown[number, attempt]
        grown[number, attempt] = (key, append_steps(packed, report))
    for key, packed in grown.values():
        connection.execute(update(attempts).where(attempts.c.key == key).values(steps=packed))


def end_attempt(connection: Connection, lease: Lease, number: int, attempt: int, failure: Failure | None) -> None:
    """Closes an attempt whose trial goes on."""
    study = leases.hold(connection, lease)
    row = _attempt(connection, study, number, attempt)
    if row.ended_us is not None:
        return
    _close_attempt(connection, row.key, failure, now_us())
    line = {"number": number, "attempt": attempt, "failure": failure.to_dict() if failure else None}
    append(connection, study.key, [("attempt.ended", line)])


def end_trial(connection: Connection, lease: Lease, trial: Trial) -> bool:
    """Makes the trial terminal with what `trial` says of status, measurement, reward, failure and reason; False if it was already."""
    study = leases.hold(connection, lease)
    row = _trial(connection, study, trial.number)
    if not trial.status.is_terminal:
        raise ConflictError(f"a trial ends in a terminal state, but trial {trial.number} is {trial.status}")
    asked = read_trial(lease.study, row)
    if asked.config != trial.config:
        raise ConflictError(
            f"trial {trial.number} of study {lease.study} was asked with another config: {asked.config}"
        )
    if row.status not in OPEN:
        keep_late(connection, study.key, trial, f"already {row.status}", lease.fence)
        return False
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED) and not trial.is_measured:
        raise ConflictError(f"trial {trial.number} cannot be {trial.status} without a measurement")
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED) and row.status != TrialStatus.RUNNING:
        raise ConflictError(f"trial {trial.number} cannot be {trial.status}: it was never started")
    if trial.status is TrialStatus.FAILED and trial.failure is None:
        raise ConflictError(f"trial {trial.number} cannot be FAILED without a failure")
    now = now_us()
    num_gpus = connection.execute(select(workloads.c.num_gpus).where(workloads.c.key == row.workload)).scalar_one()
    columns = ended_columns(asked, trial, num_gpus=num_gpus, now=now)
    connection.execute(update(trials).where(trials.c.key == row.key).values(**columns))
    if row.attempts:
        last = _attempt(connection, study, trial.number, row.attempts)
        if last.ended_us is None:
            _close_attempt(connection, last.key, trial.failure, now)
    if columns["throughput"] is not None:
        keep_record(connection, row.workload, row.config_key)
    append(connection, study.key, [("trial.ended", _ending(trial, columns["throughput"], row.attempts))])
    return True


def cancel_open(connection: Connection, study: Row[Any], reason: str) -> list[tuple[str, dict[str, Any]]]:
    """Makes every open trial of an ending study CANCELLED; returns the lines for its history."""
    rows = connection.execute(
        select(trials).where(trials.c.study == study.key, trials.c.status.in_(OPEN)).order_by(trials.c.number)
    ).all()
    now = now_us()
    lines = []
    for row in rows:
        connection.execute(
            update(trials).where(trials.c.key == row.key).values(status=str(TrialStatus.CANCELLED), ended_us=now)
        )
        open_attempts = (attempts.c.study == study.key, attempts.c.number == row.number, attempts.c.ended_us.is_(None))
        connection.execute(update(attempts).where(*open_attempts).values(ended_us=now))
        line = {"number": row.number, "status": str(TrialStatus.CANCELLED), "attempts": row.attempts, "reason": reason}
        lines.append(("trial.ended", line))
    return lines


def keep_late(connection: Connection, study: int, trial: Trial, why: str, fence: int) -> None:
    """Writes a report that came too late into the history, with its evidence."""
    line = {"number": trial.number, "why": why, "fence": fence, "trial": trial.to_dict()}
    append(connection, study, [("trial.late", line)])


def _ending(trial: Trial, throughput: float | None, attempts_made: int) -> dict[str, Any]:
    line: dict[str, Any] = {"number": trial.number, "status": str(trial.status), "attempts": attempts_made}
    if throughput is not None:
        line["tokens_per_s_per_gpu"] = throughput
    if trial.failure is not None:
        line["failure"] = {"kind": str(trial.failure.kind), "message": trial.failure.message}
    if trial.reward is not None:
        line["reward"] = trial.reward.total
    return line


def _close_attempt(connection: Connection, key: int, failure: Failure | None, now: int) -> None:
    text = json_text(failure.to_dict()) if failure else None
    connection.execute(update(attempts).where(attempts.c.key == key).values(ended_us=now, failure=text))


def _trial(connection: Connection, study: Row[Any], number: int) -> Row[Any]:
    row = connection.execute(select(trials).where(trials.c.study == study.key, trials.c.number == number)).first()
    if row is None:
        raise NotFoundError(f"study {study.id} has no trial {number}")
    return row


def _attempt(connection: Connection, study: Row[Any], number: int, attempt: int) -> Row[Any]:
    row = connection.execute(
        select(attempts).where(
            attempts.c.study == study.key, attempts.c.number == number, attempts.c.attempt == attempt
        )
    ).first()
    if row is None:
        raise NotFoundError(f"trial {number} of study {study.id} has no attempt {attempt}")
    return row


def _refuse_terminal(study: Row[Any]) -> None:
    if study.status in leases.TERMINAL:
        raise ConflictError(f"study {study.id} is {study.status}, which never changes", remedy="submit a new study")
