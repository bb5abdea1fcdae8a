"""The file of an SQLite store: read-only, deleted, replaced, copied while it is in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from autotune.cli import run
from autotune.errors import StoreCorruptError, StoreUnavailableError
from autotune.store import SqlStore, open_store
from autotune.store.connection import database
from autotune.store.upkeep import maintenance
from autotune.testing.stores import a_study, measured, pending, run_trial, running_study
from tests.matrix import sampled
from tests.shortcuts import present
from tests.store.test_faults import without_override


def path_of(store: SqlStore) -> Path:
    return present(store.database.location.path)


READ = """
import sys
from autotune.cli import run
code = run(["list", "--store", sys.argv[1]])
assert run(["store", "check", "--store", sys.argv[1]]) == 0
from autotune.store import open_store
from autotune.testing.stores import a_study
try:
    open_store(sys.argv[1]).submit(a_study(), {})
except Exception as error:
    print(error)
sys.exit(code)
"""


@pytest.mark.parametrize("mode", sampled([0o444, 0o644], [0o444]))
def test_a_read_only_file_or_folder_can_be_listed_and_not_written(
    tmp_path: Path, mode: int
) -> None:
    """`mode`: of the file. A file is read-only also where nothing may be made beside it."""
    folder = tmp_path / "archive"
    folder.mkdir()
    path = folder / "store.db"
    with closing(open_store(path)) as store:
        study = store.submit(a_study("archived"), {}).id
    for each in (path, folder):
        each.chmod(0o555 if each.is_dir() else mode)
    try:
        done = subprocess.run(
            [*without_override(), sys.executable, "-c", READ, str(path)],
            capture_output=True,
            text=True,
            timeout=600,
        )
    finally:
        folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert study in done.stdout
    assert "cannot be written: it is read-only" in done.stdout
    assert os.listdir(folder) == ["store.db"]


@pytest.mark.parametrize("how", ["deleted", "replaced", "emptied"])
def test_a_deleted_file_is_an_error_and_not_written(store: SqlStore, how: str) -> None:
    """What is written to a deleted file is lost, and an empty file in its place holds no
    studies."""
    store.submit(a_study(), {})
    path = path_of(store)
    if how == "emptied":
        os.truncate(path, 0)
    else:
        path.unlink()
    if how == "replaced":
        path.touch()
    for act in (store.studies, lambda: store.submit(a_study(), {}), store.ping):
        with pytest.raises(StoreUnavailableError, match=f"was {how} while it was open"):
            act()
    assert path.exists() == (how != "deleted"), "no empty store is made in its place"


@pytest.mark.parametrize("kept_share", sampled([0.02, 0.5, 0.9], [0.5]))
@pytest.mark.parametrize("is_open", [True, False])
def test_a_truncated_file_is_an_error_and_can_be_restored(
    tmp_path: Path, kept_share: float, is_open: bool
) -> None:
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    with closing(open_store(path)) as store:
        lease = running_study(store)
        for number in range(20):
            run_trial(store, lease, measured(pending(number)))
        maintenance.vacuum(store)
        maintenance.backup(store, backup)

    def cut_and_read() -> None:
        if not is_open:
            os.truncate(path, int(path.stat().st_size * kept_share))
        with closing(open_store(path)) as store:
            if is_open:
                os.truncate(path, int(path.stat().st_size * kept_share))
            store.trials(lease.study)

    with pytest.raises(StoreCorruptError, match="damaged") as damaged:
        cut_and_read()
    assert "autotune store restore" in damaged.value.remedy
    assert run(["store", "restore", str(backup), "--store", str(path)]) == 0
    with closing(open_store(path)) as store:
        assert len(store.trials(lease.study)) == 20


def test_a_plain_copy_of_an_open_store_has_the_study(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_S", 0.0)
    lease = running_study(store)
    run_trial(store, lease, measured(pending(0)))
    copy = Path(shutil.copy(path_of(store), tmp_path / "copy.db"))
    with closing(open_store(copy)) as copied:
        assert [record.id for record in copied.studies()] == [lease.study]
        assert [trial.is_measured for trial in copied.trials(lease.study)] == [True]
        assert maintenance.check(copied) == []


def test_a_backup_ends_although_others_write(store: SqlStore, tmp_path: Path) -> None:
    """Copied in several steps it would begin again after each write."""
    path, stop = path_of(store), threading.Event()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ballast (x)")
        connection.executemany("INSERT INTO ballast VALUES (zeroblob(1000000))", [()] * 40)
        connection.commit()

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=300)) as connection:
            while not stop.is_set():
                connection.execute("UPDATE studies SET updated_us = updated_us + 1")
                connection.commit()

    store.submit(a_study(), {})
    writer = threading.Thread(target=write)
    writer.start()
    made = threading.Thread(
        target=maintenance.backup, args=(store, tmp_path / "copy.db"), daemon=True
    )
    try:
        made.start()
        made.join(600)
        assert not made.is_alive()
    finally:
        stop.set()
        writer.join()
    with closing(open_store(tmp_path / "copy.db")) as copied:
        assert len(copied.studies()) == 1


@pytest.mark.thorough
def test_commands_exit_with_3_without_store_or_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", "--store", str(tmp_path / "nowhere" / "store.db")]) == 3
    assert run(["list", "--store", "postgresql://nobody@127.0.0.1:9/none"]) == 3
    assert run(["list", "--url", "http://127.0.0.1:9"]) == 3
    assert run(["list", "--store", str(tmp_path)]) == 2, (
        "a folder will not become a file by waiting"
    )
    assert run(["list", "--store", "mysql://x/y"]) == 2
    with suppress(SystemExit):
        capsys.readouterr()
