"""Checksums of events, trials and attempts, to find bytes that change on the disk later.

    checksum   8 bytes of blake2b (RFC 7693) over the text of all columns except `key` and `checksum`

SQLite has no checksums. These find damage and accidental changes; they are not signatures, because
anyone who changes a row can compute them. Earlier releases wrote 17 bytes or none; rows with these
are not verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, Float, LargeBinary, Table

from autotune.store.tables import attempts, events, trials

CHECKSUMMED: tuple[Table, ...] = (events, trials, attempts)
"""tables whose rows have a checksum"""
BYTES = 8
"""length of a checksum"""

Columns = Mapping[Any, Any]
"""values by column name"""


def checksum(table: Table, row: Columns) -> bytes:
    """Return the checksum of a row; missing columns are null."""
    values = [
        _plain(column, row.get(column.name))
        for column in table.c
        if column.name not in ("key", "checksum")
    ]
    return hashlib.blake2b(repr(values).encode(), digest_size=BYTES).digest()


def with_checksum(table: Table, row: Columns) -> dict[str, Any]:
    """Return the row with its checksum."""
    return {**row, "checksum": checksum(table, row)}


def changes_with_checksum(table: Table, row: Columns, changes: Columns) -> dict[str, Any]:
    """Return the changes of a stored row, with the new checksum."""
    return {**changes, "checksum": checksum(table, {**row, **changes})}


def is_checked(row: Columns) -> bool:
    """Return whether the row has a checksum of this form."""
    return row["checksum"] is not None and len(row["checksum"]) == BYTES


def is_changed(table: Table, row: Columns) -> bool:
    """Return whether a row does not match its checksum."""
    try:
        return checksum(table, row) != bytes(row["checksum"])
    except (ValueError, TypeError):  # damage changed the type of a value
        return True


def _plain(column: Column[Any], value: Any) -> Any:
    """Return the value in a type that is the same before writing and after reading on all
    databases."""
    if value is None:
        return None
    if isinstance(column.type, LargeBinary):
        return bytes(value)
    return float(value) if isinstance(column.type, Float) else str(value)
