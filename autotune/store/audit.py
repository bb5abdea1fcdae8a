"""The audit log: who did what through the service. It is only ever appended to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from autotune.ports import AuditEvent
from autotune.store.database import from_us, now_us
from autotune.store.rows import clean, json_text
from autotune.store.tables import audit


def record(connection: Connection, actor: str, action: str, subject: str, data: Mapping[str, Any]) -> None:
    """Appends a line."""
    row = {"actor": clean(actor), "action": clean(action), "subject": clean(subject), "data": json_text(data)}
    connection.execute(insert(audit).values(at_us=now_us(), **row))


def read(connection: Connection, *, after: int | None, limit: int) -> list[AuditEvent]:
    """The first lines with a larger number than `after`, in order; of None, the newest lines."""
    if after is None:
        newest = connection.execute(select(audit).order_by(audit.c.sequence.desc()).limit(limit))
        rows = list(newest)[::-1]
    else:
        found = select(audit).where(audit.c.sequence > after).order_by(audit.c.sequence).limit(limit)
        rows = list(connection.execute(found))
    return [
        AuditEvent(
            sequence=row.sequence,
            at=from_us(row.at_us),
            actor=row.actor,
            action=row.action,
            subject=row.subject,
            data=json.loads(row.data),
        )
        for row in rows
    ]
