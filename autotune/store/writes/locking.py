"""The lease on a study, which allows one controller to write. It expires unless it is renewed, and
has a fencing number.

Each claim increases the number, and each write requires the current one. So all writes of a
controller are rejected after another one took over its study, even if it was suspended meanwhile. A
lease that has expired but was not taken over still allows writes, because no other controller has
written.
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
    """The lease was taken over or released."""

    study: int
    """key of its study"""

    @property
    def kind(self) -> str:
        """The kind in responses: that of any conflict."""
        return "conflict"


def claim(
    database: Database, connection: Connection, study_id: str, owner: str, lease_s: float
) -> Lease | None:
    """Claim the lease, and return it; None if the study is leased. Raises `ConflictError` if it has
    ended."""
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
        study = find(connection, study_id)
        if study.status in TERMINAL:
            raise ConflictError(
                f"a study that has ended cannot be claimed, and study {study_id} is {study.status.lower()}"
            )
        return None
    append(connection, row.key, [(EventKind.CLAIMED, {"owner": owner, "fence": row.fence})])
    return Lease(study=study_id, owner=owner, fence=row.fence, expires_at=from_us(expires))


def holder(connection: Connection, study_id: str) -> Lease | None:
    """Return the last claimed lease, which may have expired; None if it was released."""
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
    """Return whether the study has a lease that has not expired, by the clock of the store."""
    row = find(connection, study_id)
    return bool(row.lease_owner) and row.lease_expires_us > database.server_now_us(connection)


def renew(database: Database, connection: Connection, lease: Lease, lease_s: float) -> Lease:
    """Renew the lease, and return it. An expired lease can be renewed unless it was taken over.
    Raises `FencedError`."""
    expires = database.server_now_us(connection) + round(lease_s * 1e6)
    if not connection.execute(_EXTEND, {**_parameters(lease), "expires": expires}).rowcount:
        raise_fenced(connection, lease)
    return Lease(
        study=lease.study, owner=lease.owner, fence=lease.fence, expires_at=from_us(expires)
    )


def release(connection: Connection, lease: Lease) -> None:
    """Release the lease, if it was not taken over."""
    study = connection.execute(_HOLD, _parameters(lease)).first()
    if study is not None:
        connection.execute(
            update(studies)
            .where(studies.c.key == study.key)
            .values(lease_owner="", lease_expires_us=0)
        )
        append(
            connection,
            study.key,
            [(EventKind.RELEASED, {"owner": lease.owner, "fence": lease.fence})],
        )


def hold(connection: Connection, lease: Lease) -> Row[Any]:
    """Return the study's row, locked until the transaction ends. Raises `FencedError` if the lease
    was taken over."""
    row = connection.execute(_HOLD, _parameters(lease)).first()
    if row is None:
        raise_fenced(connection, lease)
    return row


def raise_fenced(connection: Connection, lease: Lease) -> NoReturn:
    """Raise `FencedError` with the current holder."""
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
    """Return the row of the study with exactly this id. Raises `NotFoundError`."""
    row = connection.execute(_FIND, {"of_study": study_id}).first()
    if row is None:
        raise NotFoundError(
            f"there is no study {study_id!r}", remedy="`autotune list` shows the studies"
        )
    return row


def _parameters(lease: Lease) -> dict[str, Any]:
    """Return the bind parameters of `_HELD`."""
    return {"of_study": lease.study, "of_fence": lease.fence, "of_owner": lease.owner}
