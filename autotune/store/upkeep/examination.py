"""The examination of a store: the database file, the checksum of every row of each study's history,
and the laws of that history.

What it finds are sentences, by study. Whether decisions follow from what was known is not checked.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, bindparam, select, text

from autotune.errors import StoreError
from autotune.store import queries
from autotune.store.rows import read_event, read_trial
from autotune.store.sql import SqlStore
from autotune.store.tables import attempts, events, studies, trials
from autotune.store.upkeep import laws
from autotune.store.upkeep.checksums import SEALED, is_changed, is_checked
from autotune.store.upkeep.table_files import study_keys

MOST_NAMED = 20
"""rows of a study that are named one by one; of more the number is said"""

_COUNTERS: Select[Any] = select(studies.c.num_trials, studies.c.num_events).where(
    studies.c.key == bindparam("of_key")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExamined:
    """What was found of one study."""

    id: str
    """of the study"""
    rows: Mapping[str, int] = field(default_factory=dict)
    """by table, how many there are"""
    unchecked: int = 0
    """rows that an earlier release wrote, whose checksums are not read"""
    faults: tuple[str, ...] = ()
    """in sentences"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found of a store."""

    studies: tuple[StudyExamined, ...]
    """in order of submission"""
    file_faults: tuple[str, ...]
    """of the database file"""

    @property
    def faults(self) -> tuple[str, ...]:
        """All of them, in sentences."""
        return (*self.file_faults, *(fault for study in self.studies for fault in study.faults))


def examine(store: SqlStore) -> Examination:
    """Examines all of a store, which may be in use."""
    file_faults = tuple(_integrity(store))
    return Examination(
        studies=tuple(_study(store, key, study_id) for key, study_id in study_keys(store)),
        file_faults=file_faults,
    )


Rows = Mapping[str, Sequence[Row[Any]]]
"""of one study, by table, in order"""


def read_rows(connection: Connection, key: int) -> Rows:
    """All rows of a study that have a checksum."""
    with _damaged_text(connection):
        return {
            table.name: connection.execute(
                select(table).where(table.c.study == key).order_by(*_order(table))
            ).all()
            for table in SEALED
        }


def rows_changed(rows: Rows, study_id: str) -> list[str]:
    """The rows that are not what was written, in sentences."""
    sealed = ((table, row) for table in SEALED for row in rows[table.name])
    return [
        f"study {study_id}: {_name(table, row)} was changed after it was written"
        for table, row in sealed
        if is_checked(row._mapping) and is_changed(table, row._mapping)
    ]


def _order(table: Table) -> list[Any]:
    return [table.c[name] for name in ("sequence", "number", "attempt") if name in table.c]


def _name(table: Table, row: Row[Any]) -> str:
    if table is events:
        return f"event {row.sequence}"
    return (
        f"trial {row.number}" if table is trials else f"trial {row.number}, attempt {row.attempt},"
    )


@contextlib.contextmanager
def _damaged_text(connection: Connection) -> Iterator[None]:
    """On SQLite text is read that is no longer UTF-8, so that its row can be named."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    usual, driver.text_factory = (
        driver.text_factory,
        lambda raw: raw.decode("utf-8", "surrogateescape"),
    )
    try:
        yield
    finally:
        driver.text_factory = usual


def _study(store: SqlStore, key: int, study_id: str) -> StudyExamined:
    counts, unchecked, faults = Counter[str](), 0, list[str]()
    try:
        with store.database.read() as connection:  # one snapshot, because the study may be running
            record = queries.study(connection, study_id)
            counters = connection.execute(_COUNTERS, {"of_key": key}).one()
            rows = read_rows(connection, key)
        unchecked = sum(not is_checked(row._mapping) for table in rows.values() for row in table)
        changed = rows_changed(rows, study_id)
        counts.update({name: len(found) for name, found in rows.items()})
        faults += changed[:MOST_NAMED]
        if (more := len(changed) - MOST_NAMED) > 0:
            faults.append(
                f"study {study_id}: {more} more rows were changed after they were written"
            )
        lines = [read_event(study_id, row) for row in rows[events.name]]
        asked = [read_trial(study_id, row) for row in rows[trials.name]]
        faults += laws.broken_laws(record, asked, lines)
        faults += _count_faults(counters, rows, study_id)
    except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        faults.append(f"study {study_id}: cannot be read: {error}")
    return StudyExamined(id=study_id, rows=dict(counts), unchecked=unchecked, faults=tuple(faults))


def _integrity(store: SqlStore) -> Iterator[str]:
    if not store.database.is_sqlite:
        return
    try:
        with store.database.read() as connection:
            for (line,) in connection.execute(text("PRAGMA integrity_check(20)")):
                if line != "ok":
                    yield f"the file is damaged: {line}"
            for row in connection.execute(text("PRAGMA foreign_key_check")):
                yield f"row {row[1]} of table {row[0]} refers to a row of {row[2]} that does not exist"
    except StoreError as error:
        yield error.message


def _count_faults(counters: Row[Any], rows: Rows, study_id: str) -> Iterator[str]:
    launches = sum(row.attempts for row in rows[trials.name])
    for table, counted in (
        (trials, counters.num_trials),
        (events, counters.num_events),
        (attempts, launches),
    ):
        if counted != (found := len(rows[table.name])):
            yield f"study {study_id}: its counter says {counted} {table.name}, but {found} were found"
