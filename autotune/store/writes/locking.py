"""The lease on a study, which gives one controller the right to write: it expires unless renewed,
and carries a fencing number that only grows.

Each claim raises the number, and each write presents the number of its lease. A controller that was
suspended while another one took over its study therefore finds all its writes refused. A lease that
has expired but was not taken over still allows writes, because nobody else can have written.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection, Row, bindparam, or_, select, update

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import EventKind, Lease
from autotune.spec import StudyStatus
from autotune.store.connection.database import Database, from_us
from autotune.store.rows import clean
from autotune.store.tables import studies
from autotune.store.writes.history import append

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
    """The lease was taken over or released; `study` is the key of its study."""

    study: int

    @property
    def kind(self) -> str:
        """In responses it is a conflict like any other."""
        return "conflict"


def claim(
    database: Database, connection: Connection, study_id: str, owner: str, lease_s: float
) -> Lease | None:
    """Takes the lease; None while somebody else holds it."""
    owner = clean(owner)
    if not owner:
        raise ConflictError("a lease needs the name of an owner, but the name is empty")
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
            raise ConflictError(
                f"a study that has ended cannot be claimed, and study {study_id} is {found.status.lower()}"
            )
        return None
    append(connection, row.key, [(EventKind.CLAIMED, {"owner": owner, "fence": row.fence})])
    return Lease(study=study_id, owner=owner, fence=row.fence, expires_at=from_us(expires))


def holder(connection: Connection, study_id: str) -> Lease | None:
    """The last lease that was taken and not released; it may have expired."""
    row = find(connection, study_id)
    if not row.lease_owner:
        return None
    return Lease(
        study=study_id,
        owner=row.lease_owner,
        fence=row.fence,
        expires_at=from_us(row.lease_expires_us),
    )


def is_held(database: Database, connection: Connection, study_id: str) -> bool:
    """Whether somebody's lease is in force, by the clock by which it was given."""
    row = find(connection, study_id)
    return bool(row.lease_owner) and row.lease_expires_us > database.server_now_us(connection)


def renew(database: Database, connection: Connection, lease: Lease, lease_s: float) -> Lease:
    """The lease with a new expiry. An expired lease can be renewed too, unless it was taken
    over."""
    expires = database.server_now_us(connection) + round(lease_s * 1e6)
    if not connection.execute(_EXTEND, {**_named(lease), "expires": expires}).rowcount:
        refuse(connection, lease)
    return Lease(
        study=lease.study, owner=lease.owner, fence=lease.fence, expires_at=from_us(expires)
    )


def release(connection: Connection, lease: Lease) -> None:
    """Releases the lease, if it is still held."""
    held = connection.execute(_HOLD, _named(lease)).first()
    if held is not None:
        connection.execute(
            update(studies)
            .where(studies.c.key == held.key)
            .values(lease_owner="", lease_expires_us=0)
        )
        append(
            connection,
            held.key,
            [(EventKind.RELEASED, {"owner": lease.owner, "fence": lease.fence})],
        )


def hold(connection: Connection, lease: Lease) -> Row[Any]:
    """The study's row, locked until the transaction ends. Raises `FencedError` when the lease was
    taken over."""
    row = connection.execute(_HOLD, _named(lease)).first()
    if row is None:
        refuse(connection, lease)
    return row


def refuse(connection: Connection, lease: Lease) -> NoReturn:
    """Raises `FencedError`, which names the present holder."""
    row = find(connection, lease.study)
    holder = (
        f"fence {row.fence} and owner {row.lease_owner}"
        if row.lease_owner
        else f"fence {row.fence} and no owner"
    )
    error = FencedError(
        f"the lease on study {lease.study} is no longer held; this controller has fence {lease.fence} and owner {lease.owner}, but the store now has {holder}",
        remedy="stop this controller; another one runs the study",
    )
    error.study = row.key
    raise error


def find(connection: Connection, study_id: str) -> Row[Any]:
    """The row of this exact id. Raises `NotFoundError`."""
    row = connection.execute(_FIND, {"of_study": study_id}).first()
    if row is None:
        raise NotFoundError(
            f"there is no study {study_id!r}", remedy="`autotune list` shows the studies"
        )
    return row


def _named(lease: Lease) -> dict[str, Any]:
    return {"of_study": lease.study, "of_fence": lease.fence, "of_owner": lease.owner}
