"""The checksum of an event, a trial or an attempt: written with the row in one transaction, so that
a byte that changes later on the disk is found.

    checksum   8 bytes of blake2b over all columns but the database's own `key`, as text (RFC 7693)

SQLite has no checksums of its own. They find damage and careless changes, and are no signatures:
whoever rewrites a row can compute them. Releases before this form wrote 17 bytes, or none: what
they wrote is read, and not checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, Float, LargeBinary, Table

from autotune.store.tables import attempts, events, trials

SEALED: tuple[Table, ...] = (events, trials, attempts)
"""The tables whose rows have a checksum."""
BYTES = 8

Columns = Mapping[Any, Any]
"""values by name of column"""


def seal(table: Table, row: Columns) -> bytes:
    """The checksum of a row; columns that it does not name are null."""
    values = [
        _plain(column, row.get(column.name))
        for column in table.c
        if column.name not in ("key", "checksum")
    ]
    return hashlib.blake2b(repr(values).encode(), digest_size=BYTES).digest()


def sealed(table: Table, row: Columns) -> dict[str, Any]:
    """The row with its checksum."""
    return {**row, "checksum": seal(table, row)}


def resealed(table: Table, row: Columns, changes: Columns) -> dict[str, Any]:
    """What changes of a row that is kept, with the checksum that it has then."""
    return {**changes, "checksum": seal(table, {**row, **changes})}


def is_checked(row: Columns) -> bool:
    """Whether the row has a checksum of this form."""
    return row["checksum"] is not None and len(row["checksum"]) == BYTES


def is_changed(table: Table, row: Columns) -> bool:
    """Whether a row with a checksum was changed after it was written."""
    try:
        return seal(table, row) != bytes(row["checksum"])
    except (ValueError, TypeError):  # damage has changed the type of a value
        return True


def _plain(column: Column[Any], value: Any) -> Any:
    """The same before it is written and after it is read, whatever the database makes of its
    type."""
    if value is None:
        return None
    if isinstance(column.type, LargeBinary):
        return bytes(value)
    return float(value) if isinstance(column.type, Float) else str(value)
