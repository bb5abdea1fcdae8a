"""The append-only history of a study: events numbered from 1 without gaps.

The counter is a column of the study's row, and updating it locks the study. So numbers follow the
order of commits, and a transaction that is rolled back leaves no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from autotune.ports import HistoryEvent
from autotune.store.connection.database import now_us
from autotune.store.rows import json_text, read_event
from autotune.store.tables import events, studies
from autotune.store.upkeep.checksums import with_checksum

NewEvent = tuple[str, Mapping[str, Any]]
"""(kind, data) of an event"""

_COUNT = (
    update(studies)
    .where(studies.c.key == bindparam("of_study"))
    .values(
        num_events=studies.c.num_events + bindparam("new_events"),
        num_trials=studies.c.num_trials + bindparam("new_trials"),
        updated_us=bindparam("now"),
    )
    .returning(studies.c.num_events)
)
_INSERT = insert(events)


def append(
    connection: Connection, study: int, new_events: Sequence[NewEvent], *, new_trials: int = 0
) -> int:
    """Append events to the history of the study with this key, and add `new_trials` to its number
    of trials. Return the number of the first event."""
    now = now_us()
    counts = {
        "of_study": study,
        "new_events": len(new_events),
        "new_trials": new_trials,
        "now": now,
    }
    first = connection.execute(_COUNT, counts).scalar_one() - len(new_events) + 1
    rows = [
        with_checksum(
            events,
            {
                "study": study,
                "sequence": first + i,
                "at_us": now,
                "kind": str(kind),
                "data": json_text(data),
            },
        )
        for i, (kind, data) in enumerate(new_events)
    ]
    connection.execute(_INSERT, rows if len(rows) > 1 else rows[0])
    return int(first)


def read(
    connection: Connection,
    study: int,
    study_id: str,
    *,
    after: int,
    limit: int | None,
    newest: bool = False,
) -> list[HistoryEvent]:
    """Return events with a larger number than `after`, in order: the first `limit`, or with
    `newest` the last `limit`; with `limit` None all of them."""
    order = events.c.sequence.desc() if newest else events.c.sequence
    query = (
        select(events)
        .where(events.c.study == study, events.c.sequence > after)
        .order_by(order)
        .limit(limit)
    )
    rows = connection.execute(query).all()
    return [read_event(study_id, row) for row in (reversed(rows) if newest else rows)]
