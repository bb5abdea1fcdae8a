"""Decisions of a study's controller. Each is stored in one transaction, with its cause and all
facts that follow from it, so that a controller that continues the study finds no partial decisions.

Decisions of a study are numbered from 1 without gaps, by a counter in the study's row. A controller
that received no acknowledgement writes the decision again with the same number, and the counter
shows whether it was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, update

from autotune.errors import ConflictError
from autotune.ports import (
    CloseAttempt,
    Decision,
    EndTrial,
    EventKind,
    KeepNote,
    KeepSteps,
    KeepTrial,
    Lease,
    StartAttempt,
)
from autotune.spec import StudyStatus
from autotune.store.connection.database import Database
from autotune.store.tables import studies
from autotune.store.writes import lifecycle, locking, trials
from autotune.store.writes.history import append

_COUNT = (
    update(studies)
    .where(studies.c.key == bindparam("of_key"))
    .values(num_decisions=bindparam("number"))
)


def keep(database: Database, connection: Connection, lease: Lease, decision: Decision) -> None:
    """Store the decision, unless its number is that of the last stored one. Raises `ConflictError`
    for any other number than the next."""
    study = locking.hold(connection, lease)
    if decision.number == study.num_decisions:
        return
    if decision.number != study.num_decisions + 1:
        raise ConflictError(
            f"decisions are numbered without gaps: the next number in study {lease.study} is {study.num_decisions + 1}, but this decision has {decision.number}"
        )
    connection.execute(_COUNT, {"of_key": study.key, "number": decision.number})
    event: Mapping[str, Any] = {"decision": decision.number, "cause": decision.cause}
    append(connection, study.key, [(EventKind.DECIDED, event)])
    for fact in decision.facts:
        match fact:
            case KeepTrial(trial=trial):
                trials.add(connection, lease, trial)
            case StartAttempt(request=request):
                trials.start_attempt(connection, lease, request.number, request.attempt)
            case KeepSteps(steps=steps):
                trials.add_steps(connection, lease, [steps])
            case CloseAttempt(number=number, attempt=attempt, failure=failure):
                trials.end_attempt(connection, lease, number, attempt, failure)
            case EndTrial(trial=trial):
                trials.end_trial(connection, lease, trial)
            case KeepNote(kind=kind, data=data):
                append(connection, study.key, [(kind, data)])
    if decision.fields or decision.status or decision.message is not None or decision.wanted:
        lifecycle.set_status(
            database,
            connection,
            lease.study,
            decision.status or StudyStatus(study.status),
            expect=[StudyStatus(study.status)],
            message=decision.message,
            lease=lease,
            wanted=decision.wanted,
            fields=decision.fields,
        )


def keep_late(
    connection: Connection, fenced: locking.FencedError, lease: Lease, decision: Decision
) -> None:
    """Store the decision's measurements in the history as late reports. `lease`: was taken over."""
    for fact in decision.facts:
        if isinstance(fact, EndTrial) and fact.trial.is_measured:
            trials.keep_late(
                connection, fenced.study, fact.trial, "the lease was taken over", lease.fence
            )


def is_durable(decision: Decision) -> bool:
    """Return whether the decision must survive a power failure: it ends a trial or changes the
    study's status."""
    return decision.status is not None or any(isinstance(fact, EndTrial) for fact in decision.facts)
