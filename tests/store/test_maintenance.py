"""Check, backup, export, vacuum, and the laws that `check` holds every history against."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from autotune.errors import (
    ConflictError,
    MissingExtraError,
    SpecError,
    StoreUnavailableError,
)
from autotune.ports import CloseAttempt, EndTrial, KeepTrial, StepsReported
from autotune.spec import Failure, FailureKind, ParallelConfig, StudyStatus, Trial, TrialStatus
from autotune.store import MemoryStore, SqlStore, open_store
from autotune.store.upkeep import maintenance
from autotune.store.upkeep.history_rules import rule_violations
from autotune.testing.stores import (
    a_study,
    decide,
    failed,
    launch,
    measured,
    pending,
    reported,
    run_trial,
    running_study,
)
from tests.shortcuts import present
from tests.store.forging import forge


@pytest.fixture
def store(store: SqlStore) -> SqlStore:
    fill(store)
    return store


def fill(store: SqlStore) -> None:
    """Two studies: one that ended, with every kind of trial; one that runs."""
    lease = running_study(store, a_study('a,b\n"c"'))
    run_trial(store, lease, measured(pending(0)))
    run_trial(store, lease, failed(pending(1)))
    decide(store, lease, KeepTrial(trial=pending(2)))
    decide(store, lease, launch(lease, 2, 1))
    store.add_steps(lease, [reported((lease.study, 2, 1), 0, [0.5, 0.25])])
    decide(
        store,
        lease,
        CloseAttempt(
            number=2, attempt=1, failure=Failure(kind=FailureKind.WORKER_LOST, message="gone")
        ),
    )
    decide(store, lease, launch(lease, 2, 2))
    decide(store, lease, EndTrial(trial=measured(pending(2), status=TrialStatus.STOPPED)))
    decide(store, lease, EndTrial(trial=measured(pending(2), step_time_s=9.0)))
    decide(store, lease, KeepTrial(trial=pending(3)))
    store.set_status(
        lease.study,
        StudyStatus.COMPLETED,
        expect=[StudyStatus.RUNNING],
        lease=lease,
        best=0,
        speedup=1.5,
    )
    store.release(lease)
    other = running_study(store)
    decide(store, other, KeepTrial(trial=pending(0)))
    decide(store, other, launch(other, 0, 1))


def test_a_valid_store_has_no_fault(store: SqlStore) -> None:
    assert maintenance.check(store) == []


@pytest.mark.parametrize("simulated_first", [False, True])
def test_a_simulated_trial_does_not_represent_a_measured_config(
    memory: MemoryStore, simulated_first: bool
) -> None:
    runners = ["simulated", "ray"] if simulated_first else ["ray", "simulated"]
    for runner in runners:
        lease = running_study(memory, replace(a_study(runner), runner=runner))
        run_trial(memory, lease, measured(pending(0), step_time_s=0.5 if runner == "ray" else 0.1))
    lease = running_study(memory, replace(a_study("played"), runner="simulated"))
    run_trial(memory, lease, measured(pending(0, ParallelConfig(pp=8)), step_time_s=0.1))
    found = {
        "all": memory.best(),
        "real": memory.best(without_runner="simulated"),
        "ray": memory.best(runner="ray"),
    }
    assert [record.study.name for record, _ in found["all"]] == ["played", "ray"]
    assert [record.study.name for record, _ in found["real"]] == ["ray"]
    assert found["ray"] == found["real"]
    assert [record.study.name for record, _ in memory.best(runner="simulated")] == ["played"]
    assert [record.study.name for record, _ in memory.best(one_each=True)] == ["played"]
    assert maintenance.check(memory) == []


def test_a_valid_store_on_a_server_has_no_fault(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    with closing(open_store(new_database())) as store:
        fill(store)
        assert maintenance.check(store) == []
        maintenance.vacuum(store)
        dump = maintenance.backup(store, tmp_path / "dump").stat()
        assert dump.st_size > 1000
        assert dump.st_mode & 0o077 == 0
        with pytest.raises(SpecError, match="cannot be written"):
            maintenance.backup(store, tmp_path / "no" / "folder" / "dump")
        assert [path.name for path in maintenance.export(store, tmp_path / "out")][
            1
        ] == "trials.csv"


FORGERIES = {
    "DELETE FROM events WHERE sequence = 5": "event 5 is numbered 6",
    "UPDATE trials SET status = 'COMPLETED' WHERE number = 1": "trial 1",
    "UPDATE trials SET attempts = 3 WHERE number = 2": "trial 2 has 3 attempts but started [1, 2]",
    "DELETE FROM attempts WHERE attempt = 2": "attempts",
    "UPDATE trials SET number = 9 WHERE number = 3": "trial 3",
    "UPDATE studies SET status = 'RUNNING' WHERE best = 0": "is RUNNING but ended 1 time",
    "UPDATE studies SET num_trials = 7 WHERE best = 0": "its counter says 7 trials, but 4 were found",
    "UPDATE trials SET document = x'00' WHERE number = 0": "cannot be read",
    "UPDATE specs SET \"values\" = '{}'": "cannot be read",
    "UPDATE trials SET status = 'RUNNING' WHERE number = 3": "are open",
    "INSERT INTO events SELECT study, 99, at_us, kind, data, checksum FROM events WHERE kind = 'trial.ended' LIMIT 1": "99",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_violations_in_the_database_are_detected(store: SqlStore, forgery: str) -> None:
    forge(store, forgery)
    assert FORGERIES[forgery] in "\n".join(maintenance.check(store))


def test_rule_violations_need_no_database(memory: MemoryStore) -> None:
    lease = running_study(memory)
    run_trial(memory, lease, measured(pending(0)))
    record, trials, events = (
        memory.study(lease.study),
        memory.trials(lease.study),
        memory.events(lease.study),
    )
    assert rule_violations(record, trials, events) == []
    twice = [*events, replace(events[-1], sequence=len(events) + 1)]
    assert any("ended 2 times" in fault for fault in rule_violations(record, trials, twice))
    adopted = replace(
        events[-1], sequence=len(events) + 1, kind="trial.adopted", data={"number": 0, "attempt": 1}
    )
    assert any(
        "after its end" in fault for fault in rule_violations(record, trials, [*events, adopted])
    )
    early = [*events[: next(i for i, e in enumerate(events) if e.kind == "trial.started")], adopted]
    assert any(
        "adopted while no attempt was running" in fault
        for fault in rule_violations(record, trials, early)
    )
    never: list[Trial] = []
    assert any(
        "not in the trials table" in fault for fault in rule_violations(record, never, events)
    )


def test_a_backup_is_a_store_and_never_overwrites(store: SqlStore, tmp_path: Path) -> None:
    target = maintenance.backup(store, tmp_path / "copy.db")
    before = store.studies()
    running_study(store)
    with closing(open_store(target)) as copy:
        assert copy.studies() == before
        assert maintenance.check(copy) == []
    for place in (target, tmp_path, tmp_path / "no" / "folder" / "copy.db", target / "copy.db"):
        with pytest.raises(SpecError, match=re.escape(str(place))) as refused:
            maintenance.backup(store, place)
        assert refused.value.field == "target"
    assert not list(tmp_path.glob("*.part"))


def test_a_failed_backup_leaves_no_file_and_no_other_file_is_changed(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {f"copy.db{end}": "weeks of work" for end in (".part", ".part-journal", ".tmp")}
    folder = tmp_path / "backups"
    folder.mkdir()
    for name, content in others.items():
        (folder / name).write_text(content)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailableError, match="No space left"):
        maintenance.backup(store, folder / "copy.db")
    monkeypatch.undo()
    assert {path.name: path.read_text() for path in folder.iterdir()} == others
    maintenance.backup(store, folder / "copy.db")
    assert {path.name for path in folder.iterdir()} == {*others, "copy.db"}
    assert all((folder / name).read_text() == content for name, content in others.items())


def test_an_export_has_the_values_of_the_store(store: SqlStore, tmp_path: Path) -> None:
    paths = maintenance.export(store, tmp_path / "out")
    assert [path.name for path in paths] == ["studies.csv", "trials.csv", "steps.csv", "events.csv"]
    tables = {}
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            tables[path.stem] = list(csv.DictReader(file))
    assert {row["name"] for row in tables["studies"]} == {'a,b\n"c"', "study"}
    kept = [trial for record in reversed(store.studies()) for trial in store.trials(record.id)]
    assert [row["status"] for row in tables["trials"]] == [str(trial.status) for trial in kept]
    first = tables["trials"][0]
    assert float(first["step_time_s"]) == present(kept[0].measurement).step_time_s
    assert (first["tp"], first["dp"], first["precision"], first["compile"]) == (
        "1",
        "8",
        "bf16",
        "False",
    )
    assert [row["loss"] for row in tables["steps"]] == ["1.5", "1.25"]
    assert len(tables["events"]) == sum(len(store.events(record.id)) for record in store.studies())
    with pytest.raises(SpecError, match="cannot be written") as refused:
        maintenance.export(store, paths[0])  # a file
    assert refused.value.field == "folder"
    with pytest.raises(SpecError, match="csv or parquet"):
        maintenance.export(store, tmp_path, format="xlsx")


def test_parquet_without_pyarrow_has_a_remedy(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"autotune-parallel\[parquet\]"):
        maintenance.export(store, tmp_path / "out", format="parquet")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_export_replaces_only_files_of_exports(
    store: SqlStore, tmp_path: Path, kind: str
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / "out"
    first = maintenance.export(store, out, format=kind)
    assert maintenance.export(store, out, format=kind) == first
    for name in (f"trials.{kind}", f"studies.{kind}.part"):
        (out / name).write_text("weeks of work")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ConflictError, match=f"trials.{kind} exists and was not written"):
        maintenance.export(store, out, format=kind)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_export_as_parquet(store: SqlStore, tmp_path: Path) -> None:
    from pyarrow import parquet

    paths = maintenance.export(store, tmp_path / "out", format="parquet")
    tables = {path.stem: parquet.read_table(path) for path in paths}
    assert tables["trials"].num_rows == 5
    assert tables["steps"].column("loss").to_pylist() == [1.5, 1.25]


def test_an_empty_store_is_exported_with_column_names(memory: MemoryStore, tmp_path: Path) -> None:
    for path in maintenance.export(memory, tmp_path / "out"):
        assert len(path.read_text().splitlines()) == 1


def test_vacuum_returns_space(store: SqlStore, tmp_path: Path) -> None:
    lease = running_study(store, a_study("large"))
    for number in range(40):
        decide(store, lease, KeepTrial(trial=pending(number)))
        decide(store, lease, launch(lease, number, 1))
        steps: list[StepsReported] = [reported((lease.study, number, 1), 0, [0.1] * 500)]
        store.add_steps(lease, steps)
    forge(store, "UPDATE attempts SET steps = x''")
    maintenance.vacuum(store)
    with store.database.read() as connection:
        assert connection.execute(text("PRAGMA freelist_count")).scalar() == 0
    assert len(store.trials(lease.study)) == 40
