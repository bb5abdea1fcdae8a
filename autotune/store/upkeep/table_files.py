"""Export of a store for other programs: studies, trials, steps and events, each as a CSV or Parquet
file.

Columns have units in their names; times are ISO 8601 in UTC; unknown values are empty.
"""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import select

from autotune.errors import ConflictError, SpecError
from autotune.extras import require_extra
from autotune.ports import HistoryEvent, StudyRecord
from autotune.settings import expanded
from autotune.spec.plain import canonical
from autotune.spec.runs.trial_row import TRIAL_COLUMNS, iso, trial_row
from autotune.store.connection.diagnosis import diagnosed, file_errors
from autotune.store.packing import unpack_steps
from autotune.store.sql import SqlStore
from autotune.store.tables import attempts, studies
from autotune.whole_files import whole_file

PAGE = 1000
"""number of rows that are read or written at once, which limits the memory for a large store"""

Columns = Mapping[str, type]
Row = tuple[Any, ...]

STUDIES: Columns = {
    **dict.fromkeys(
        (
            "study",
            "name",
            "owner",
            "status",
            "message",
            "model",
            "cluster",
            "gpu",
            "trainer",
            "searcher",
        ),
        str,
    ),
    **dict.fromkeys(("num_gpus", "seq_len"), int),
    **dict.fromkeys(("created_at", "started_at", "ended_at"), str),
    **dict.fromkeys(("trials", "baseline", "best"), int),
    **dict.fromkeys(("elapsed_s", "speedup"), float),
}
STEPS: Columns = {
    "study": str,
    **dict.fromkeys(("number", "attempt", "step"), int),
    **dict.fromkeys(("step_time_s", "loss", "grad_norm"), float),
}
EVENTS: Columns = {"study": str, "sequence": int, "at": str, "kind": str, "data": str}


def export(store: SqlStore, folder: str | os.PathLike[str], *, format: str = "csv") -> list[Path]:  # noqa: A002
    """Write one file per table into `folder`, each completely or not at all, and return their
    paths.

    `format`: csv or parquet. Raises `SpecError` for another format or a folder that cannot be
    written, `ConflictError` if a file exists that no export wrote, and `MissingExtraError` for
    parquet without pyarrow.
    """
    if format not in ("csv", "parquet"):
        raise SpecError(
            f"a store is exported as csv or parquet, but the format is {format!r}", field="format"
        )
    write = _write_csv if format == "csv" else _parquet_writer()
    folder = expanded(folder, field="folder").absolute()
    tables: dict[str, tuple[Columns, Callable[[SqlStore], Iterable[Row]]]] = {
        "studies": (STUDIES, _study_rows),
        "trials": (TRIAL_COLUMNS, _trial_rows),
        "steps": (STEPS, _step_rows),
        "events": (EVENTS, _event_rows),
    }
    written = []
    with diagnosed(store.database.location), file_errors(folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: folder / f"{name}.{format}" for name in tables}
        _check_replaceable(paths.values())
        for name, (columns, rows) in tables.items():
            path = paths[name]
            with whole_file(path, mode=0o666) as part:
                write(part, columns, rows(store))
            written.append(path)
    return written


def _check_replaceable(paths: Iterable[Path]) -> None:
    """Raise `ConflictError` for a file that no export wrote."""
    for path in paths:
        if not path.is_file():
            continue
        if path.suffix == ".csv":
            with path.open(errors="replace") as file:
                is_export = file.read(6) in ("study,", "")
        else:
            from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

            try:
                is_export = parquet.read_schema(path).names[:1] == ["study"]
            except ValueError:  # not a parquet file
                is_export = False
        if not is_export:
            raise ConflictError(
                f"{path} exists and was not written by an export",
                remedy="export to another folder, or move that file away",
            )


def study_keys(store: SqlStore) -> Iterator[tuple[int, str]]:
    """Yield (key, id) of all studies, in order of submission."""
    last = 0
    while True:
        query = (
            select(studies.c.key, studies.c.id)
            .where(studies.c.key > last)
            .order_by(studies.c.key)
            .limit(PAGE)
        )
        with store.database.read() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        yield from ((row.key, row.id) for row in rows)
        last = rows[-1].key


def all_events(store: SqlStore, study_id: str) -> Iterator[HistoryEvent]:
    """Yield the complete history of a study."""
    after = 0
    while page := store.events(study_id, after=after, limit=PAGE):
        yield from page
        after = page[-1].sequence


def _study_rows(store: SqlStore) -> Iterator[Row]:
    """Yield a row for each study."""
    for _, study_id in study_keys(store):
        yield _study_row(store.study(study_id))


def _study_row(record: StudyRecord) -> Row:
    """Return the row of a study, in the order of `STUDIES`."""
    study, workload = record.study, record.study.workload
    state = (record.id, study.name, record.owner, str(record.status), record.message)
    names = (
        workload.model.name,
        workload.cluster.name,
        workload.cluster.gpu.name,
        workload.trainer,
        study.searcher,
    )
    times = (iso(record.created_at), iso(record.started_at), iso(record.ended_at))
    counts = (sum(record.trial_counts.values()), record.baseline, record.best)
    return (
        *state,
        *names,
        workload.cluster.num_gpus,
        workload.seq_len,
        *times,
        *counts,
        record.elapsed_s,
        record.speedup,
    )


def _trial_rows(store: SqlStore) -> Iterator[Row]:
    """Yield a row for each trial."""
    for _, study_id in study_keys(store):
        for trial in store.trials(study_id):
            yield trial_row(trial)


def _step_rows(store: SqlStore) -> Iterator[Row]:
    """Yield a row for each step."""
    for key, study_id in study_keys(store):
        query = (
            select(attempts.c.number, attempts.c.attempt, attempts.c.steps)
            .where(attempts.c.study == key)
            .order_by(attempts.c.number, attempts.c.attempt)
        )
        with store.database.read() as connection:
            launches = connection.execute(query).all()
        for number, attempt, packed in launches:
            for values in zip(*unpack_steps(packed).values(), strict=True):
                yield (study_id, number, attempt, *values)


def _event_rows(store: SqlStore) -> Iterator[Row]:
    """Yield a row for each event."""
    for _, study_id in study_keys(store):
        for event in all_events(store, study_id):
            yield (study_id, event.sequence, iso(event.at), event.kind, canonical(event.data))


def _write_csv(path: Path, columns: Columns, rows: Iterable[Row]) -> None:
    """Write the rows below a line with the column names."""
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def _parquet_writer() -> Callable[[Path, Columns, Iterable[Row]], None]:
    """Return a function like `_write_csv` for Parquet. Raises `MissingExtraError` without
    pyarrow."""
    require_extra("parquet", "an export to parquet")
    import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from pyarrow import parquet

    kinds = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }

    def write(path: Path, columns: Columns, rows: Iterable[Row]) -> None:
        schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        rows = iter(rows)
        with parquet.ParquetWriter(path, schema) as writer:
            while batch := list(itertools.islice(rows, 10 * PAGE)):
                arrays = [
                    pyarrow.array(values, field.type)
                    for values, field in zip(zip(*batch, strict=True), schema, strict=True)
                ]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

    return write
