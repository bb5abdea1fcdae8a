"""Checksums: what changes on the disk is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Table

from autotune.errors import StoreCorruptError
from autotune.ports import KeepTrial
from autotune.store import SqlStore, open_store
from autotune.store.connection.location import find_location
from autotune.store.upkeep import maintenance
from autotune.store.upkeep.checksums import CHECKSUMMED
from autotune.store.upkeep.examination import MAX_LISTED, examine
from autotune.store.upkeep.restoring import MAX_LISTED as MAX_LISTED_OF_BACKUP
from autotune.store.upkeep.restoring import restore
from autotune.testing.stores import (
    decide,
    launch,
    measured,
    pending,
    reported,
    run_trial,
    running_study,
)
from tests.store.forging import forge, rows
from tests.store.test_schema import VERSION_2, old_file

COLUMNS = [
    (table, column.name)
    for table in CHECKSUMMED
    for column in table.c
    if column.name not in ("key", "checksum")
]

ANOTHER_WORKLOAD = "INSERT INTO workloads SELECT 77, 'another', model, cluster, gpu, num_gpus, trainer, seq_len, workload FROM workloads LIMIT 1"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a study that runs: one trial ended, one runs with steps."""
    path = tmp_path_factory.mktemp("written") / "store.db"
    with closing(open_store(path)) as store:
        fill(store)
    return path


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Iterator[SqlStore]:
    path = tmp_path / "store.db"
    path.write_bytes(written.read_bytes())
    with closing(open_store(path)) as opened:
        yield opened


def fill(store: SqlStore) -> str:
    lease = running_study(store)
    run_trial(store, lease, measured(pending(0)))
    decide(store, lease, KeepTrial(trial=pending(1)))
    decide(store, lease, launch(lease, 1, 1))
    store.add_steps(lease, [reported((lease.study, 1, 1), 0, [0.5, 0.25])])
    store.add_steps(lease, [reported((lease.study, 1, 1), 2, [0.5])])
    store.adopt_attempt(lease, 1, 1)
    return lease.study


def test_every_row_is_written_with_its_checksum(store: SqlStore) -> None:
    found = examine(store)
    assert not found.faults
    (study,) = found.studies
    assert (study.rows["trials"], study.rows["attempts"], study.unchecked) == (2, 2, 0)
    assert study.rows["events"] == len(store.events(study.id))


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{t.name}.{c}" for t, c in COLUMNS])
def test_a_changed_column_is_detected_and_its_row_listed(
    store: SqlStore, table: Table, column: str
) -> None:
    study_id = store.studies()[0].id
    other = running_study(store).study
    value = {"Text": "'?'", "LargeBinary": "x'0102'", "Float": "0.125"}.get(
        type(table.c[column].type).__name__, "77"
    )
    value = "2" if column == "study" else value
    key = "sequence" if table.name == "events" else "key"
    forge(store, ANOTHER_WORKLOAD)
    forge(
        store,
        f"UPDATE {table.name} SET {column} = {value} WHERE {key} = (SELECT max({key}) FROM {table.name})",
    )
    (fault,) = [fault for fault in examine(store).faults if "changed after" in fault]
    row = "event" if table.name == "events" else "trial"
    assert fault.startswith(f"study {other if column == 'study' else study_id}: {row} ")
    assert fault.endswith("was changed after it was written")


def test_the_first_changed_rows_are_listed_and_the_others_counted(
    store: SqlStore, tmp_path: Path
) -> None:
    events = len(store.events(store.studies()[0].id))
    copied = "INSERT INTO events SELECT study, sequence + {}, at_us, kind, data, checksum FROM events WHERE sequence < 1000"
    forge(store, *(copied.format(1000 * more) for more in range(1, 4)))
    maintenance.backup(store, tmp_path / "backup.db")
    with pytest.raises(
        StoreCorruptError, match=f"; and {3 * events - MAX_LISTED_OF_BACKUP} more rows"
    ):
        restore(find_location(str(tmp_path / "other.db")), tmp_path / "backup.db")
    named = [fault for fault in maintenance.check(store) if "changed after" in fault]
    assert len(named) == MAX_LISTED + 1
    assert named[-1].endswith(
        f"{3 * events - MAX_LISTED} more rows were changed after they were written"
    )


def flip(path: Path, piece: bytes, *, bit: int = 1) -> None:
    """Flips a bit in the middle of that piece of the file."""
    content = bytearray(path.read_bytes())
    assert content.count(piece) == 1, "the piece must be found once"
    content[content.index(piece) + len(piece) // 2] ^= bit
    path.write_bytes(content)


def pieces(path: Path) -> dict[str, bytes]:
    """By what `check` has to say of it, a piece of the file that belongs to one field of one
    row."""
    ((study,),) = rows(path, "SELECT id FROM studies")
    ((document,),) = rows(path, "SELECT document FROM trials WHERE number = 0")
    ((steps,),) = rows(path, "SELECT steps FROM attempts WHERE number = 1")
    ((sequence, data),) = rows(path, "SELECT sequence, data FROM events WHERE kind = 'trial.ended'")
    return {
        f"study {study}: trial 0 was changed after it was written": document[40:80],
        f"study {study}: trial 1, attempt 1, was changed after it was written": steps[:40],
        f"study {study}: event {sequence} was changed after it was written": data.encode(),
    }


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("bit", [1, 128])
def test_a_flipped_bit_that_sqlite_does_not_detect_is_detected(
    written: Path, tmp_path: Path, which: int, bit: int
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(written.read_bytes())
    said, piece = list(pieces(path).items())[which]
    flip(path, piece, bit=bit)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    with closing(open_store(path)) as store:
        assert any(fault.startswith(said) for fault in maintenance.check(store)), maintenance.check(
            store
        )


def test_a_backup_with_a_flipped_bit_is_not_restored(written: Path, tmp_path: Path) -> None:
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    path.write_bytes(written.read_bytes())
    backup.write_bytes(written.read_bytes())
    said, piece = next(iter(pieces(backup).items()))
    flip(backup, piece)
    with pytest.raises(StoreCorruptError, match=said):
        restore(find_location(str(path)), backup)
    with closing(open_store(path)) as store:
        assert maintenance.check(store) == []
    assert not list(tmp_path.glob("*.before-restore-*"))


def test_rows_of_earlier_releases_are_read_and_counted_as_unchecked(
    tmp_path: Path,
) -> None:
    with closing(open_store(old_file(tmp_path / "old.db", VERSION_2))) as store:
        found = examine(store)
        assert not found.faults
        assert all(study.unchecked == sum(study.rows.values()) > 0 for study in found.studies)
        study_id = fill(store)
        assert examine(store).studies[-1].unchecked == 0
        forge(
            store, "UPDATE events SET checksum = x'01' || checksum || checksum"
        )  # as long as those of a release before
        last = next(study for study in examine(store).studies if study.id == study_id)
        assert (last.faults, last.unchecked) == ((), last.rows["events"])


def test_checksums_match_on_a_server(new_database: Callable[[], str]) -> None:
    with closing(open_store(new_database())) as store:
        study_id = fill(store)
        assert maintenance.check(store) == []
        forge(store, "UPDATE attempts SET failure = 'x' WHERE number = 0")
        assert maintenance.check(store) == [
            f"study {study_id}: trial 0, attempt 1, was changed after it was written"
        ]
