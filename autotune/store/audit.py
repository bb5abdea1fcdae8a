"""Who did what through the service: append-only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from autotune.store.database import from_us, now_us
from autotune.store.rows import clean, json_text
from autotune.store.tables import audit


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One line of the audit."""

    sequence: int
    """rises; gaps mean that a write was undone"""
    at: datetime
    actor: str
    """owner of the token, or `loopback`"""
    action: str
    """e.g. study.submit, study.cancel, token.create, refused"""
    subject: str
    """id of the study or token"""
    data: Mapping[str, Any]


def record(connection: Connection, actor: str, action: str, subject: str, data: Mapping[str, Any]) -> None:
    """Adds a line."""
    row = {"actor": clean(actor), "action": clean(action), "subject": clean(subject), "data": json_text(data)}
    connection.execute(insert(audit).values(at_us=now_us(), **row))


def read(connection: Connection, *, after: int, limit: int) -> list[AuditEvent]:
    """The lines after that number, in order."""
    rows = connection.execute(select(audit).where(audit.c.sequence > after).order_by(audit.c.sequence).limit(limit))
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
