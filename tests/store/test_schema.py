"""Versions: a new store is made, an older one is upgraded after a copy, a newer or foreign one is
refused."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from autotune.errors import StoreCorruptError, StoreVersionError
from autotune.spec import ParallelConfig, StudyStatus, TrialStatus, Wanted
from autotune.store import SqlStore, open_store, schema
from autotune.store.rows import config_key
from autotune.store.schema import HEAD
from autotune.store.tables import metadata
from autotune.store.upkeep import maintenance
from autotune.testing.stores import (
    a_study,
    an_observed_run,
    measured,
    pending,
    run_trial,
    running_study,
)
from tests.postgresql import PostgresServer
from tests.store.forging import change, dump, rows

DATA = Path(__file__).parent / "data"
VERSION_1 = DATA / "version-1.sql"
"""What the first version wrote: a study with five trials, and one that waits."""
VERSION_2 = DATA / "version-2.sql"
"""What the second version wrote: a study with five trials, a simulated one with three, and one that
waits."""


def test_a_second_new_store_has_the_schema_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_CREATE", [])
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    for path in (first, second):
        open_store(path).close()
    assert dump(first) == dump(second)
    assert [line for line in dump(second) if line.startswith("INSERT")] == [
        f"INSERT INTO \"autotune_version\" VALUES('{HEAD}');"
    ]


def test_only_its_user_can_read_a_new_store(own_house: Path, tmp_path: Path) -> None:
    with closing(open_store()) as store:
        store.tokens.create("ann", "read")
        modes = {path.name: path.stat().st_mode & 0o777 for path in own_house.iterdir()}
        assert modes["autotune.db"] == 0o600
        assert set(modes.values()) == {0o600}  # -wal and -shm too
        assert own_house.stat().st_mode & 0o777 == 0o700
        maintenance.backup(store, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600


@pytest.fixture(params=["sqlite", "postgresql"])
def new_address(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The address of a database without tables, of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "new.db")
    server: PostgresServer = request.getfixturevalue("server")
    return server.new_database()


def difference(store: SqlStore) -> list[object]:
    """What the migrations' result lacks or has beyond the tables that the code uses."""
    with store.database.engine.connect() as connection:
        options = {"version_table": "autotune_version", "compare_type": True}
        return list(
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        )


def old_file(path: Path, written: Path = VERSION_1) -> Path:
    """A file of an older version."""
    change(path, written.read_text())
    return path


def keys_of(path: Path) -> list[tuple[int, str]]:
    """(config_key, config) of all trials."""
    return rows(path, "SELECT config_key, config FROM trials ORDER BY key")


def test_the_migrations_create_the_tables_in_the_code(address: str) -> None:
    with closing(open_store(address)) as store:
        assert difference(store) == []


def test_a_version_1_file_is_upgraded_after_a_copy(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.db")
    with closing(open_store(path)) as store:
        assert difference(store) == []
        assert maintenance.check(store) == []
        old, waiting = store.study("old"), store.study("waiting")
        statuses = [trial.status for trial in store.trials(old.id)]
        assert statuses == [TrialStatus.COMPLETED] * 4 + [TrialStatus.FAILED]
        assert [(record.id, trial.number) for record, trial in store.best()] == [
            (old.id, 3),
            (old.id, 2),
        ]
        assert (
            store.submit(a_study("waiting"), {"x": 1}, idempotency_key="k", owner="ada") == waiting
        )
        assert store.tokens.list() == []
    (copy,) = tmp_path.glob("old.db.v0001-*.backup")
    assert rows(copy, "SELECT version_num FROM autotune_version") == [("0001",)]
    assert rows(copy, "SELECT count(*) FROM trials") == [(5,)]
    open_store(path).close()
    assert len(list(tmp_path.glob("*.backup"))) == 1, (
        "a file that is up to date is not copied again"
    )


@pytest.mark.parametrize("written", [VERSION_1, VERSION_2])
def test_an_upgrade_updates_config_keys(tmp_path: Path, written: Path) -> None:
    path = old_file(tmp_path / "old.db", written)
    before = keys_of(path)
    open_store(path).close()
    after = keys_of(path)
    assert [config for _, config in after] == [config for _, config in before]
    assert [key for key, _ in after] == [
        config_key(ParallelConfig.parse(config)) for _, config in after
    ]
    assert all(new != old for (new, _), (old, _) in zip(after, before, strict=True))


@pytest.mark.parametrize("written", [VERSION_1, VERSION_2])
def test_an_upgraded_store_shares_workloads_with_new_studies(tmp_path: Path, written: Path) -> None:
    path = old_file(tmp_path / "old.db", written)
    count = "SELECT count(*) FROM workloads"
    before = rows(path, count)
    with closing(open_store(path)) as store:
        for record in store.studies():
            store.submit(record.study, {})
    assert rows(path, count) == before


def test_a_version_2_file_keeps_its_best_trials_and_marks_simulated_ones(
    tmp_path: Path,
) -> None:
    path = old_file(tmp_path / "old.db", VERSION_2)
    query = "SELECT trial, throughput FROM records ORDER BY trial"
    best = rows(path, query)
    with closing(open_store(path)) as store:
        assert difference(store) == []
        assert maintenance.check(store) == []
        assert rows(path, query) == best
        assert [record.study.name for record in store.studies(runner="simulated")] == ["played"]
        assert [record.study.name for record in store.studies(without_runner="simulated")] == [
            "waiting",
            "real",
        ]
        assert {record.study.name for record, _ in store.best(without_runner="simulated")} == {
            "real"
        }
        assert [str(trial.config) for _, trial in store.best(runner="simulated")] == [
            str(ParallelConfig(tp=4, dp=2))
        ]


@pytest.mark.parametrize("version", range(3, int(HEAD)))
def test_a_store_of_any_version_is_upgraded_to_the_same_content(
    tmp_path: Path, version: int
) -> None:
    direct, stopped = (old_file(tmp_path / name, VERSION_2) for name in ("direct.db", "stopped.db"))
    open_store(direct).close()
    engine = create_engine(f"sqlite:///{stopped}")
    with engine.begin() as connection:
        schema.upgrade(connection, f"{version:04d}")
    engine.dispose()
    assert rows(stopped, "SELECT version_num FROM autotune_version") == [(f"{version:04d}",)]
    with closing(open_store(stopped)) as store:
        assert difference(store) == []
        assert maintenance.check(store) == []
    assert dump(stopped) == dump(direct)


def test_an_upgrade_derives_requests_from_the_status(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.db", VERSION_2)
    change(
        path,
        "UPDATE studies SET status = 'PAUSED', message = 'paused on request' WHERE name = 'waiting'",
        "UPDATE studies SET status = 'STOPPING', ended_us = NULL WHERE name = 'real'",
    )
    with closing(open_store(path)) as store:
        found = {record.study.name: record.wanted for record in store.studies()}
    assert found == {"waiting": Wanted.PAUSE, "real": Wanted.STOP, "played": Wanted.RUN}


def test_a_version_7_store_gets_standings_and_an_index(
    new_address: str,
) -> None:
    every = text("SELECT * FROM records ORDER BY trial")
    with closing(open_store(new_address)) as store:
        studies = [ended_study(store, name) for name in ("deleted", "stays")]
        found, before = store.best(), [store.trials(study) for study in studies]
        assert [trial.number for _, trial in found] == [2, 2, 0, 0, 1, 1, 3, 3]
        with store.database.write() as connection:
            stood = connection.execute(every).mappings().all()
            for statement in back_to_version_7():
                connection.execute(text(statement))
        assert len(difference(store)) > 1
    with closing(open_store(new_address)) as store:
        assert difference(store) == []
        assert maintenance.check(store) == []
        assert (store.best(), [store.trials(study) for study in studies]) == (found, before)
        with store.database.read() as connection:
            assert connection.execute(every).mappings().all() == stood
        store.delete(studies[0])
        assert {record.id for record, _ in store.best()} == {studies[1]}
        assert maintenance.check(store) == []


def test_a_version_9_store_gets_the_table_of_observed_runs(new_address: str) -> None:
    with closing(open_store(new_address)) as store:
        study = ended_study(store, "kept")
        before = (store.best(), store.trials(study))
        with store.database.write() as connection:
            connection.execute(text("DROP TABLE observed"))
            connection.execute(text("UPDATE autotune_version SET version_num = '0009'"))
    with closing(open_store(new_address)) as store:
        assert difference(store) == []
        assert store.observed() == []
        run = store.keep_observed(an_observed_run(a_study("kept", model="kept")))
        assert store.observed() == [run]
        assert (store.best(), store.trials(study)) == before
        assert maintenance.check(store) == []


def ended_study(store: SqlStore, name: str) -> str:
    """A study of a model of that name: four trials, each slower than the one before, and finals
    that the third of them won before the second."""
    lease = running_study(store, a_study(name, model=name))
    trials = [measured(pending(number), step_time_s=0.1 * (number + 1)) for number in range(4)]
    for trial in trials:
        run_trial(store, lease, trial)
    finals = [
        {"config": trials[number].config.to_dict(), "tokens_per_s": 32 * 1024 / 0.35}
        for number in (2, 1)
    ]
    status = [StudyStatus.RUNNING]
    store.set_status(
        lease.study, StudyStatus.COMPLETED, expect=status, lease=lease, result={"finals": finals}
    )
    return lease.study


def back_to_version_7() -> Iterator[str]:
    """What undoes the upgrades since then."""
    yield "DROP TABLE observed"
    sorted_by = {
        "throughput": (),
        "model_cluster": ("model", "cluster"),
        "model": ("model",),
        "cluster": ("cluster",),
    }
    for name in ("trial", "standing", "model_cluster", "model", "cluster"):
        yield f"DROP INDEX ix_records_{name}"
    yield "ALTER TABLE records DROP COLUMN standing"
    for name, columns in sorted_by.items():
        yield f"CREATE INDEX ix_records_{name} ON records ({', '.join([*columns, 'throughput'])})"
    yield "UPDATE autotune_version SET version_num = '0007'"


def test_a_failed_upgrade_does_not_change_the_file(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.db")
    change(path, "CREATE TABLE tokens (x)")
    before = dump(path)
    with pytest.raises(Exception, match="tokens"):
        open_store(path)
    assert dump(path) == before


def test_a_newer_file_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    open_store(path).close()
    change(path, "UPDATE autotune_version SET version_num = '9999'")
    with pytest.raises(StoreVersionError, match=f"9999.*{HEAD}.*upgrade autotune"):
        open_store(path)
    assert not list(tmp_path.glob("*.backup"))


def test_a_process_of_an_older_release_cannot_write_to_an_upgraded_store(
    address: str,
) -> None:
    with closing(open_store(address)) as older:
        study = older.submit(a_study(), {}).id
        with older.database.engine.begin() as newer:
            newer.execute(text("UPDATE autotune_version SET version_num = '9999'"))
        with pytest.raises(StoreVersionError, match="was upgraded to version 9999"):
            older.submit(a_study(), {})
        assert [record.id for record in older.studies()] == [study]


def test_a_database_of_another_program_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "foreign.db"
    change(path, "CREATE TABLE customers (name)")
    with pytest.raises(StoreCorruptError, match="customers"):
        open_store(path)


def _open(address: str, gate: object) -> str:
    gate.wait(600)  # type: ignore[attr-defined]
    with closing(open_store(address)) as store:
        store.submit(a_study(), {})
    return "ok"


@pytest.mark.thorough
def test_many_processes_open_a_new_store_at_once(new_address: str) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(4) as pool:
        gate = manager.Barrier(4)
        jobs = [pool.apply_async(_open, (new_address, gate)) for _ in range(4)]
        assert [job.get(600) for job in jobs] == ["ok"] * 4
    with closing(open_store(new_address)) as store:
        assert len(store.studies()) == 4
        assert maintenance.check(store) == []


def test_a_database_of_another_program_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (id)")
        database.commit()
    before = path.read_bytes()
    with pytest.raises(StoreCorruptError, match="not an autotune store: it has the tables runs"):
        open_store(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
