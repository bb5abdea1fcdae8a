"""The examination of a store: the file, the checksum of every row of each study, the laws of its history, whether its decisions follow, and the records of the
best.

What it finds are sentences, by study. Decisions are replayed by a function that is passed (`autotune.study.replay`): the store knows no controllers.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, Table, and_, bindparam, case, func, select, text

from autotune.errors import StoreError
from autotune.ports import HistoryEvent, Replay, Replayed, StudyRecord
from autotune.reward import standing
from autotune.spec import Trial
from autotune.spec.study import SIMULATED
from autotune.store import laws, queries
from autotune.store.best_trials import finals_per_gpu
from autotune.store.checksums import SEALED, changed_kinds, is_filled
from autotune.store.database import to_us
from autotune.store.rows import read_event, read_trial
from autotune.store.sql import SqlStore
from autotune.store.table_files import study_keys
from autotune.store.tables import attempts, events, records, studies, trials

MOST_NAMED = 20
"""rows of a study that are named one by one; of more the number is said"""

_COUNTERS: Select[Any] = select(studies.c.num_trials, studies.c.num_events).where(studies.c.key == bindparam("of_key"))

_STANDING: Select[Any] = (
    select(trials.c.number, records.c.config_key, records.c.throughput, records.c.standing)
    .join(records, records.c.trial == trials.c.key)
    .where(trials.c.study == bindparam("of_key"))
    .order_by(trials.c.number)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExamined:
    """What was found of one study."""

    id: str
    """of the study"""
    rows: dict[str, int] = field(default_factory=dict)
    """by table, how many rows agree with their checksum"""
    filled: int = 0
    """how many of those checksums were filled in at an upgrade"""
    faults: tuple[str, ...] = ()
    """in sentences"""
    replayed: Replayed | None = None
    """what a replay of its decisions found; None: they were not replayed, or cannot be read"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found of a store."""

    studies: tuple[StudyExamined, ...]
    """in order of submission"""
    not_asked: int
    """studies whose decisions were not to be replayed"""
    file_faults: tuple[str, ...]
    """of the database file"""
    record_faults: tuple[str, ...]
    """of the records that `autotune best` reads"""

    @property
    def faults(self) -> tuple[str, ...]:
        """All of them, in sentences."""
        return (*self.file_faults, *(f for study in self.studies for f in study.faults), *self.record_faults)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far an examination is."""

    studies: int
    """in the store"""
    replays: int
    """whose decisions are to be replayed"""
    done: int = 0
    replayed: int = 0
    checked_s: float = 0.0
    """spent on all but replays, s"""
    replayed_s: float = 0.0
    """spent on replays, s"""

    @property
    def left_s(self) -> float:
        """Time that is still needed when the rest takes as long for each study, s."""
        check_s, replay_s = self.checked_s / max(1, self.done), self.replayed_s / max(1, self.replayed)
        return (self.studies - self.done) * check_s + (self.replays - self.replayed) * replay_s


def changed_studies(store: SqlStore, *, newest: int | None = None, since: datetime | None = None) -> frozenset[str]:
    """Ids of the studies that were submitted last, up to `newest` of them, or of those in which anything was written `since` then."""
    query = select(studies.c.id).order_by(studies.c.created_us.desc(), studies.c.key.desc()).limit(newest)
    if since is not None:
        query = query.where(studies.c.updated_us >= to_us(since))
    with store.database.read() as connection:
        return frozenset(connection.scalars(query))


def examine(
    store: SqlStore,
    *,
    replay: Replay | None = None,
    of: Collection[str] | None = None,
    on_study: Callable[[Progress], None] = lambda progress: None,
) -> Examination:
    """Examines all of a store, which may be in use, the newest study first. `replay`: replays a study's decisions; None: they are not replayed. `of`: ids of the
    studies to be replayed; None: all. `on_study` is called after each study."""
    file_faults = tuple(_integrity(store))
    keys, found = list(study_keys(store)), list[StudyExamined]()
    asked = {study_id for _, study_id in keys if replay is not None and (of is None or study_id in of)}
    progress = Progress(studies=len(keys), replays=len(asked))
    for key, study_id in reversed(keys):
        found.append(_study(store, key, study_id, replay if study_id in asked else None, progress))
        on_study(progress)
    return Examination(
        studies=tuple(reversed(found)),
        not_asked=len(keys) - len(asked),
        file_faults=file_faults,
        record_faults=tuple(_record_faults(store)),
    )


Rows = Mapping[str, Sequence[Row[Any]]]
"""of one study, by table, in order"""


def read_rows(connection: Connection, key: int) -> Rows:
    """All rows of a study that have a checksum."""
    with _damaged_text(connection):
        return {
            table.name: connection.execute(select(table).where(table.c.study == key).order_by(*_order(table))).all()
            for table in SEALED
        }


def rows_changed(rows: Rows, study_id: str) -> tuple[Counter[str], int, list[str]]:
    """Of one study: rows that agree with their checksum by table, how many of those checksums were filled in at an upgrade, and the others in sentences."""
    sound, filled, changed = Counter[str](), 0, list[str]()
    for table in SEALED:
        for row in rows[table.name]:
            columns = row._asdict()
            if kinds := changed_kinds(table, columns):
                changed.append(f"study {study_id}: {_name(table, row)}: not what was written: {', '.join(kinds)}")
            else:
                sound[table.name] += 1
                filled += is_filled(columns)
    return sound, filled, changed


def _order(table: Table) -> list[Any]:
    return [table.c[name] for name in ("sequence", "number", "attempt") if name in table.c]


def _name(table: Table, row: Row[Any]) -> str:
    if table is events:
        return f"event {row.sequence}"
    return f"trial {row.number}" if table is trials else f"trial {row.number}, attempt {row.attempt}"


@contextlib.contextmanager
def _damaged_text(connection: Connection) -> Iterator[None]:
    """On SQLite text is read that is no longer UTF-8, so that its row can be named."""
    if connection.dialect.name != "sqlite":
        yield
        return
    driver: Any = connection.connection.driver_connection
    usual, driver.text_factory = driver.text_factory, lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        driver.text_factory = usual


def _study(store: SqlStore, key: int, study_id: str, replay: Replay | None, progress: Progress) -> StudyExamined:
    began_s = replay_s = time.monotonic()
    sound, filled, faults, replayed = Counter[str](), 0, list[str](), None
    try:
        with store.database.read() as connection:  # one snapshot, because the study may be running
            record = queries.study(connection, study_id)
            counters = connection.execute(_COUNTERS, {"of_key": key}).one()
            rows = read_rows(connection, key)
            stand = connection.execute(_STANDING, {"of_key": key}).all()
        sound, filled, changed = rows_changed(rows, study_id)
        faults += changed[:MOST_NAMED]
        if (more := len(changed) - MOST_NAMED) > 0:
            faults.append(f"study {study_id}: {more} more rows are not what was written")
        lines = [read_event(study_id, row) for row in rows[events.name]]
        asked = [read_trial(study_id, row) for row in rows[trials.name]]
        faults += laws.broken_laws(record, asked, lines)
        faults += _count_faults(counters, rows, study_id)
        faults += _figure_faults(rows, asked, lines)
        faults += _standing_faults(stand, record)
        replay_s = time.monotonic()
        if replay is not None:
            replayed = replay(record, asked, lines)
            if replayed.unfollowed is not None:
                faults.append(f"study {study_id}: {replayed.unfollowed}")
    except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        faults.append(f"study {study_id}: cannot be read: {error}")
    progress.done += 1
    progress.checked_s += replay_s - began_s
    if replay is not None:
        progress.replayed += 1
        progress.replayed_s += time.monotonic() - replay_s
    return StudyExamined(id=study_id, rows=dict(sound), filled=filled, faults=tuple(faults), replayed=replayed)


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
    for table, counted in ((trials, counters.num_trials), (events, counters.num_events), (attempts, launches)):
        if counted != (found := len(rows[table.name])):
            yield f"study {study_id}: its counter says {counted} {table.name}, but it has {found}"


def _figure_faults(rows: Rows, asked: Sequence[Trial], lines: Sequence[HistoryEvent]) -> Iterator[str]:
    """Figures by which queries rank and count trials, and which are not those of the trial's end. They were written with it, as copies."""
    ends = {line.data["number"]: line.data for line in lines if line.kind == "trial.ended"}
    for row, trial in zip(rows[trials.name], asked, strict=True):
        end = ends.get(row.number, {})
        failure = str(trial.failure.kind) if trial.failure else None
        for name, written in (
            ("throughput", end.get("tokens_per_s_per_gpu")),
            ("reward", end.get("reward")),
            ("failure", failure),
        ):
            if (figure := row._mapping[name]) != written:
                yield f"study {trial.study}: trial {row.number}: it is ranked with the {name} {figure}, but ended with {written}"


def _standing_faults(rows: Sequence[Row[Any]], record: StudyRecord) -> Iterator[str]:
    """Configs that a trial of the study represents, and that do not stand where its finals put them."""
    speeds = finals_per_gpu(record.result, record.study.workload.cluster.num_gpus)
    for row in rows:
        if row.standing != (due := standing(row.config_key, row.throughput, speeds)):
            yield f"study {record.id}: trial {row.number}: its config stands at {row.standing}, but by the finals at {due}"


def _record_faults(store: SqlStore) -> Iterator[str]:
    """Configs whose representative is missing, is not the median of the config's trials, or has another throughput than its trial."""
    simulated = case((studies.c.runner == SIMULATED, 1), else_=0)
    counted = (
        select(trials.c.workload, trials.c.config_key, trials.c.throughput, simulated.label("simulated"))
        .join(studies, studies.c.key == trials.c.study)
        .where(trials.c.throughput.is_not(None))
        .subquery()
    )
    config = (counted.c.workload, counted.c.config_key)
    real = select(*config, func.min(counted.c.simulated).label("simulated")).group_by(*config).subquery()
    matching = [counted.c[name] == real.c[name] for name in ("workload", "config_key", "simulated")]
    measured = (
        select(*config, real.c.simulated, func.count().label("places"))
        .join(real, and_(*matching))
        .group_by(*config, real.c.simulated)
        .subquery()
    )
    others = counted.alias()
    joined = (measured.c.workload == records.c.workload) & (measured.c.config_key == records.c.config_key)
    slower = (
        select(func.count())
        .select_from(others)
        .where(
            others.c.workload == records.c.workload,
            others.c.config_key == records.c.config_key,
            others.c.simulated == measured.c.simulated,
            others.c.throughput < records.c.throughput,
        )
        .correlate(records, measured)
        .scalar_subquery()
    )
    columns = (measured.c.workload, measured.c.places, records.c.trial, slower.label("slower"))
    query = select(*columns).join(records, joined, isouter=True)
    differs = (trials.c.key == records.c.trial) & (trials.c.throughput != records.c.throughput)
    copied = select(records.c.workload, records.c.throughput, trials.c.throughput.label("measured")).join(
        trials, differs
    )
    with store.database.read() as connection:
        for row in connection.execute(query):
            if row.trial is None or row.slower > (row.places - 1) // 2:
                yield f"a config of workload {row.workload} is not represented by the median of its {row.places} trials"
        for copy in connection.execute(copied):
            yield f"a config of workload {copy.workload} is ranked with the throughput {copy.throughput}, but its trial has {copy.measured}"
