"""`autotune store check`: the database file, the checksums of rows, and the rules of each study's
history (`history_rules`). Faults are messages, by study.
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
from autotune.store.upkeep import history_rules
from autotune.store.upkeep.checksums import CHECKSUMMED, is_changed, is_checked
from autotune.store.upkeep.table_files import study_keys

MAX_LISTED = 20
"""maximum number of changed rows that are listed per study; the others are counted"""

_COUNTERS: Select[Any] = select(studies.c.num_trials, studies.c.num_events).where(
    studies.c.key == bindparam("of_key")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExamination:
    """The result of the check of one study."""

    id: str
    """id of the study"""
    rows: Mapping[str, int] = field(default_factory=dict)
    """number of rows by table"""
    unchecked: int = 0
    """number of rows of earlier releases, whose checksums are not verified"""
    faults: tuple[str, ...] = ()
    """messages"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """The result of the check of a store."""

    studies: tuple[StudyExamination, ...]
    """in order of submission"""
    file_faults: tuple[str, ...]
    """messages about the database file"""

    @property
    def faults(self) -> tuple[str, ...]:
        """All messages."""
        return (*self.file_faults, *(fault for study in self.studies for fault in study.faults))


def examine(store: SqlStore) -> Examination:
    """Check a store, which may be in use, and return the result."""
    file_faults = tuple(_integrity(store))
    return Examination(
        studies=tuple(_study(store, key, study_id) for key, study_id in study_keys(store)),
        file_faults=file_faults,
    )


Rows = Mapping[str, Sequence[Row[Any]]]
"""the rows of one study with a checksum, by table, in order"""


def read_rows(connection: Connection, key: int) -> Rows:
    """Return the rows of a study with a checksum."""
    with _damaged_text(connection):
        return {
            table.name: connection.execute(
                select(table).where(table.c.study == key).order_by(*_order(table))
            ).all()
            for table in CHECKSUMMED
        }


def changed_rows(rows: Rows, study_id: str) -> list[str]:
    """Return a message for each row that does not match its checksum."""
    stored = ((table, row) for table in CHECKSUMMED for row in rows[table.name])
    return [
        f"study {study_id}: {_name(table, row)} was changed after it was written"
        for table, row in stored
        if is_checked(row._mapping) and is_changed(table, row._mapping)
    ]


def _order(table: Table) -> list[Any]:
    """Return the columns to sort the table's rows by."""
    return [table.c[name] for name in ("sequence", "number", "attempt") if name in table.c]


def _name(table: Table, row: Row[Any]) -> str:
    """Return the name of a row in messages."""
    if table is events:
        return f"event {row.sequence}"
    return (
        f"trial {row.number}" if table is trials else f"trial {row.number}, attempt {row.attempt},"
    )


@contextlib.contextmanager
def _damaged_text(connection: Connection) -> Iterator[None]:
    """Read invalid UTF-8 in SQLite with surrogates in the block, so that damaged rows can be
    listed."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    original, driver.text_factory = (
        driver.text_factory,
        lambda raw: raw.decode("utf-8", "surrogateescape"),
    )
    try:
        yield
    finally:
        driver.text_factory = original


def _study(store: SqlStore, key: int, study_id: str) -> StudyExamination:
    """Check a study, and return the result."""
    counts, unchecked, faults = Counter[str](), 0, list[str]()
    try:
        with store.database.read() as connection:  # one snapshot, because the study may be running
            record = queries.study(connection, study_id)
            counters = connection.execute(_COUNTERS, {"of_key": key}).one()
            rows = read_rows(connection, key)
        unchecked = sum(not is_checked(row._mapping) for table in rows.values() for row in table)
        changed = changed_rows(rows, study_id)
        counts.update({name: len(of_table) for name, of_table in rows.items()})
        faults += changed[:MAX_LISTED]
        if (more := len(changed) - MAX_LISTED) > 0:
            faults.append(
                f"study {study_id}: {more} more rows were changed after they were written"
            )
        history = [read_event(study_id, row) for row in rows[events.name]]
        stored = [read_trial(study_id, row) for row in rows[trials.name]]
        faults += history_rules.rule_violations(record, stored, history)
        faults += _count_faults(counters, rows, study_id)
    except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        faults.append(f"study {study_id}: cannot be read: {error}")
    return StudyExamination(
        id=study_id, rows=dict(counts), unchecked=unchecked, faults=tuple(faults)
    )


def _integrity(store: SqlStore) -> Iterator[str]:
    """Yield messages about the database file."""
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
    """Yield messages about counters that differ from the number of rows."""
    launches = sum(row.attempts for row in rows[trials.name])
    for table, counted in (
        (trials, counters.num_trials),
        (events, counters.num_events),
        (attempts, launches),
    ):
        if counted != (found := len(rows[table.name])):
            yield f"study {study_id}: its counter says {counted} {table.name}, but {found} were found"
