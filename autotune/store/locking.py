"""Who may write for a study: a lease that runs out, with a fencing number that only grows.

Whoever writes shows the fence; a claim raises it, so that a controller that slept through its lease finds every write refused from then on.
A lease that ran out but that nobody took over still writes: nobody else could have.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection, Row, bindparam, or_, select, update

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import Lease
from autotune.spec import StudyStatus
from autotune.store.database import Database, from_us
from autotune.store.history import append
from autotune.store.rows import clean
from autotune.store.tables import studies

TERMINAL = tuple(str(status) for status in StudyStatus if status.is_terminal)

_HELD = (
    studies.c.id == bindparam("of_study"),
    studies.c.fence == bindparam("of_fence"),
    studies.c.lease_owner == bindparam("of_owner"),
)
_HOLD = select(studies).where(*_HELD).with_for_update()
_EXTEND = update(studies).where(*_HELD).values(lease_expires_us=bindparam("expires"))
_FIND = select(studies).where(studies.c.id == bindparam("of_study"))


class FencedError(ConflictError):
    """The lease was taken over, or given back; `study` is the key of the study that it was for."""

    study: int

    @property
    def kind(self) -> str:
        """On the wire it is a conflict like any other."""
        return "conflict"


def claim(database: Database, connection: Connection, study_id: str, owner: str, lease_s: float) -> Lease | None:
    """Takes the lease, or returns None while another holds it."""
    owner = clean(owner)
    if not owner:
        raise ConflictError("a lease needs an owner's name")
    now = database.server_now_us(connection)
    expires = now + round(lease_s * 1e6)
    row = connection.execute(
        update(studies)
        .where(studies.c.id == study_id, studies.c.status.not_in(TERMINAL))
        .where(or_(studies.c.lease_owner == "", studies.c.lease_expires_us <= now))
        .values(lease_owner=owner, lease_expires_us=expires, fence=studies.c.fence + 1)
        .returning(studies.c.key, studies.c.fence)
    ).first()
    if row is None:
        found = find(connection, study_id)
        if found.status in TERMINAL:
            raise ConflictError(f"study {study_id} is {found.status} and cannot be claimed")
        return None
    append(connection, row.key, [("study.claimed", {"owner": owner, "fence": row.fence})])
    return Lease(study=study_id, owner=owner, fence=row.fence, expires_at=from_us(expires))


def holder(connection: Connection, study_id: str) -> Lease | None:
    """The last lease that was taken and not given back."""
    row = find(connection, study_id)
    if not row.lease_owner:
        return None
    return Lease(study=study_id, owner=row.lease_owner, fence=row.fence, expires_at=from_us(row.lease_expires_us))


def renew(database: Database, connection: Connection, lease: Lease, lease_s: float) -> Lease:
    """The lease, longer; also one that ran out, as long as nobody took it."""
    expires = database.server_now_us(connection) + round(lease_s * 1e6)
    if not connection.execute(_EXTEND, {**_named(lease), "expires": expires}).rowcount:
        refuse(connection, lease)
    return Lease(study=lease.study, owner=lease.owner, fence=lease.fence, expires_at=from_us(expires))


def release(connection: Connection, lease: Lease) -> None:
    """Gives the lease back, if it is still ours."""
    held = connection.execute(_HOLD, _named(lease)).first()
    if held is not None:
        connection.execute(update(studies).where(studies.c.key == held.key).values(lease_owner="", lease_expires_us=0))
        append(connection, held.key, [("study.released", {"owner": lease.owner, "fence": lease.fence})])


def hold(connection: Connection, lease: Lease) -> Row[Any]:
    """The study's row, locked until the transaction ends. Raises `FencedError` when the lease was taken over."""
    row = connection.execute(_HOLD, _named(lease)).first()
    if row is None:
        refuse(connection, lease)
    return row


def refuse(connection: Connection, lease: Lease) -> NoReturn:
    """Raises the error that says who holds the study instead."""
    row = find(connection, lease.study)
    holder = f"fence {row.fence} of {row.lease_owner}" if row.lease_owner else f"released after fence {row.fence}"
    error = FencedError(
        f"the lease on study {lease.study} is no longer held: fence {lease.fence} of {lease.owner}, but now {holder}",
        remedy="stop this controller; the study goes on elsewhere",
    )
    error.study = row.key
    raise error


def find(connection: Connection, study_id: str) -> Row[Any]:
    """The row of this exact id. Raises `NotFoundError`."""
    row = connection.execute(_FIND, {"of_study": study_id}).first()
    if row is None:
        raise NotFoundError(f"no study has the id {study_id!r}", remedy="`autotune list` shows them")
    return row


def _named(lease: Lease) -> dict[str, Any]:
    return {"of_study": lease.study, "of_fence": lease.fence, "of_owner": lease.owner}
