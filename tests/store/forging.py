"""Writes of which the store knows nothing, as damage and forgers do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, text, update

from autotune.store import SqlStore
from autotune.store.upkeep.checksums import CHECKSUMMED, checksum


def forge(store: SqlStore, *statements: str, seal_again: bool = False) -> None:
    """Executes the statements. `seal_again`: then every row gets the checksum that belongs to
    it."""
    with store.database.write() as connection:
        for statement in statements:
            connection.execute(text(statement))
        if seal_again:
            seal_all(connection)


def seal_all(connection: Connection) -> None:
    """Gives every row the checksum that belongs to it, as a forger does who knows how."""
    for table in CHECKSUMMED:
        for row in connection.execute(select(table)).all():
            of: Any = [column == row._mapping[column] for column in table.primary_key.columns]
            connection.execute(
                update(table).where(*of).values(checksum=checksum(table, row._mapping))
            )


def rows(path: Path, query: str) -> list[Any]:
    """What the query finds in the file."""
    with closing(sqlite3.connect(path)) as file:
        return file.execute(query).fetchall()


def change(path: Path, *statements: str) -> None:
    """Executes the statements on the file, which no store holds open."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(";\n".join(statements))


def dump(path: Path) -> list[str]:
    """All that the file holds, as SQL."""
    with closing(sqlite3.connect(path)) as file:
        return list(file.iterdump())


def end_of_root_page(path: Path, name: str) -> tuple[int, int]:
    """Where the first page of a table or an index ends in the file, and how long a page is."""
    ((root,),) = rows(path, f"SELECT rootpage FROM sqlite_master WHERE name = '{name}'")
    ((size,),) = rows(path, "PRAGMA page_size")
    return root * size, size
