"""A backup in the place of a store, and the upgrade of a store that is only tried."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.cli import run
from autotune.store import open_store, schema
from autotune.store.connection.location import find_location
from autotune.store.schema import HEAD
from autotune.store.upkeep import maintenance
from autotune.store.upkeep.restoring import migrate, restore
from autotune.testing.stores import a_study, measured, pending, run_trial, running_study
from tests.chaos.arena import forkserver
from tests.postgresql import PostgresServer
from tests.shortcuts import present
from tests.store.forging import change, dump, end_of_root_page
from tests.store.test_schema import VERSION_2, old_file


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of a store with one study of one trial."""
    with closing(open_store(tmp_path / "first.db")) as store:
        run_trial(store, running_study(store, a_study("backed-up")), measured(pending(0)))
        return maintenance.backup(store, tmp_path / "backup.db")


def names(path: Path) -> list[str]:
    with closing(open_store(path)) as store:
        assert maintenance.check(store) == []
        return [record.study.name for record in store.studies()]


def restored(path: Path, backup: Path) -> int:
    return run(["store", "restore", str(backup), "--store", str(path)])


def with_a_damaged_page(path: Path) -> bytes:
    """The file, with other bytes at the head of the first page of the trials."""
    end, size = end_of_root_page(path, "trials")
    content = bytearray(path.read_bytes())
    content[end - size : end - size + 64] = b"\xa5" * 64
    return bytes(content)


def test_the_old_wal_is_not_applied_to_a_restored_store(tmp_path: Path, backup: Path) -> None:
    path = tmp_path / "store.db"
    with closing(open_store(path)) as store:
        store.submit(a_study("later"), {})
        for suffix in ("", "-wal", "-shm"):  # as a process leaves them that is killed
            shutil.copy(f"{path}{suffix}", tmp_path / f"left.db{suffix}")
    left = tmp_path / "left.db"
    assert left.with_name("left.db-wal").stat().st_size
    assert restored(left, backup) == 0
    assert names(left) == ["backed-up"]
    (kept,) = tmp_path.glob("left.db.before-restore-*[0-9]")
    assert names(kept) == ["later"], "what was there is kept, with its WAL"


def die_at_step(step: int, path: Path, backup: Path) -> None:
    """Restores in this process, which is killed just before it does the step-th thing to a file of
    the store's folder; ends in peace where there are fewer."""
    steps = itertools.count(1)

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        changes = event in (
            "os.rename",
            "os.link",
            "os.remove",
            "sqlite3.connect",
            "shutil.copyfile",
        )
        if (
            changes
            and any(str(path.parent) in str(argument) for argument in arguments)
            and next(steps) == step
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)
    restore(find_location(path), backup)


def deaths(tmp_path: Path, backup: Path, old: dict[str, bytes]) -> Iterator[tuple[Path, int]]:
    """What a restore over the old store (suffix: content of file) leaves that dies after so many
    steps: path of the store, steps."""
    for step in itertools.count(1):
        folder = tmp_path / str(step)
        folder.mkdir()
        path = folder / "store.db"
        for suffix, content in old.items():
            path.with_name(path.name + suffix).write_bytes(content)
        process = forkserver().Process(target=die_at_step, args=(step, path, backup))
        process.start()
        process.join(600)
        assert process.exitcode in (0, -signal.SIGKILL)
        if process.exitcode == 0:
            assert step > 5
            return
        yield path, step - 1


@pytest.mark.thorough
def test_a_killed_restore_leaves_the_store_or_the_backup(tmp_path: Path, backup: Path) -> None:
    with closing(open_store(tmp_path / "old.db")) as store:
        store.submit(a_study("later"), {})
        old = {suffix: (tmp_path / f"old.db{suffix}").read_bytes() for suffix in ("", "-wal")}
    assert old["-wal"]
    for path, steps in deaths(tmp_path, backup, old):
        left = shutil.copytree(path.parent, tmp_path / "left" / str(steps)) / path.name
        assert names(left) in (["later"], ["backed-up"]), f"after {steps} steps"
        assert restored(path, backup) == 0
        assert names(path) == ["backed-up"]
        kept = [names(file) for file in path.parent.glob("store.db.before-restore-*[0-9]")]
        assert ["later"] in kept, f"what was there is kept, after {steps} steps"


@pytest.mark.slow
def test_a_killed_restore_over_a_damaged_store_loses_no_byte(tmp_path: Path, backup: Path) -> None:
    old = {"": b"no database at all\n" * 500, "-wal": b"nor a log of one\n" * 500}
    for path, steps in deaths(tmp_path, backup, old):
        pairs = [path, *path.parent.glob("store.db.before-restore-*[0-9]")]
        found = [
            {s: p.read_bytes() for s in old if (p := file.with_name(file.name + s)).exists()}
            for file in pairs
        ]
        assert old in found, f"after {steps} steps"
        assert restored(path, backup) == 0
        assert names(path) == ["backed-up"]


@pytest.mark.thorough
def test_an_open_store_is_not_replaced(tmp_path: Path, backup: Path) -> None:
    path = tmp_path / "store.db"
    opened = "import sys; from autotune.store import open_store; s = open_store(sys.argv[1]); s.studies(); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", opened, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert present(process.stdout).readline().strip() == "open"
        assert restored(path, backup) == 1
        present(process.stdin).close()
    assert names(path) == []
    assert restored(path, backup) == 0
    assert names(path) == ["backed-up"]


def test_a_damaged_or_deleted_store_is_restored(tmp_path: Path, backup: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"no database at all\n" * 500)
    mine = path.with_name("store.db.part")
    mine.write_text("weeks of work")
    assert restored(path, backup) == 0
    assert names(path) == ["backed-up"]
    assert mine.read_text() == "weeks of work"
    path.unlink()
    path.with_name("store.db-wal").write_bytes(b"of the deleted one")
    assert restored(path, backup) == 0
    assert names(path) == ["backed-up"]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["missing", "cut", "page", "foreign", "newer", "itself"])
def test_an_invalid_backup_is_rejected_and_the_store_unchanged(
    tmp_path: Path, backup: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.db"
    with closing(open_store(path)) as store:
        store.submit(a_study("stays"), {})
    if how == "missing":
        backup.unlink()
    elif how == "cut":
        backup.write_bytes(backup.read_bytes()[:20_000])
    elif how == "page":
        backup.write_bytes(with_a_damaged_page(backup))
    elif how == "newer":
        change(backup, "UPDATE autotune_version SET version_num = '9999'")
    elif how == "foreign":
        backup.unlink()
        change(backup, "CREATE TABLE customers (name)")
    assert restored(path, path if how == "itself" else backup) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert names(path) == ["stays"]
    assert not list(tmp_path.glob("*.part"))


def test_a_dry_run_on_a_server_changes_nothing(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server.new_database()
    with monkeypatch.context() as older:
        older.setattr(schema, "HEAD", "0007")
        open_store(address).close()
    location = find_location(address)
    for dry_run, before in ((True, "0007"), (False, "0007"), (True, HEAD)):
        assert migrate(location, dry_run=dry_run) == (before, HEAD)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.db", VERSION_2)
    before = dump(path)
    assert run(["store", "migrate", "--dry-run", "--store", str(path)]) == 0
    assert dump(path) == before
    assert not list(tmp_path.glob("*.backup"))


def test_migrate_returns_the_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = old_file(tmp_path / "old.db", VERSION_2)
    for before in ("0002", HEAD):
        assert run(["store", "migrate", "--store", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "before": before,
            "after": HEAD,
            "dry_run": False,
        }
    assert len(list(tmp_path.glob("*.backup"))) == 1
