"""Writes of which the store knows nothing, as damage and forgers do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, text, update

from autotune.store import SqlStore
from autotune.store.upkeep.checksums import SEALED, seal


def forge(store: SqlStore, *statements: str, seal_again: bool = False) -> None:
    """Executes the statements. `seal_again`: then every row gets the checksum that belongs to it."""
    with store.database.write() as connection:
        for statement in statements:
            connection.execute(text(statement))
        if seal_again:
            seal_all(connection)


def seal_all(connection: Connection) -> None:
    """Gives every row the checksum that belongs to it, as a forger does who knows how."""
    for table in SEALED:
        for row in connection.execute(select(table)).all():
            of: Any = [column == row._mapping[column] for column in table.primary_key.columns]
            connection.execute(update(table).where(*of).values(checksum=seal(table, row._mapping)))
