"""A study whose database other programs lock, or whose disk is full, until its controller has said
so; and one whose clock jumps. It goes on and comes to the same end.

What is disturbed ends with what the controller says, not with time, so that these tests wait for
nothing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune import api
from autotune.report.page import html_report
from autotune.store import SqlStore, open_store
from autotune.store.connection import database
from autotune.study.progress import LoopEvent, Notice, TrialEnded
from tests.chaos.arena import fill_disk, see, small_disk, undisturbed
from tests.chaos.checker import violations
from tests.chaos.controller import AWAY, set_clock_by
from tests.chaos.replay.faults import faults_of
from tests.chaos.schedule import study_spec
from tests.postgresql import PostgresServer, postgres_server
from tests.shortcuts import present

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

SPEC = study_spec(searcher="cost_ranked", seed=0)
SPEC["runner"] = SPEC["runner"] | {"time_scale": 0.0}
HOUR_S = 3600.0

Act = Callable[[], object]


def disturbed(store: SqlStore, begin: Act, end: Act) -> list[str]:
    """Runs a study. After its third trial the fault begins; it ends as soon as the controller says
    that it waits. Returns what it said."""
    said: list[str] = []
    trials_ended = 0

    def hear(event: LoopEvent) -> None:
        nonlocal trials_ended
        if isinstance(event, TrialEnded):
            trials_ended += 1
            if trials_ended == 3:
                begin()
        elif isinstance(event, Notice) and event.message.startswith(AWAY):
            said.append(event.message)
            if len(said) == 1:
                end()

    study = api.submit_study(store, api.load_study(SPEC), SPEC).id
    api.run_study(store, study, on_event=hear)
    assert wrong(store, study) == []
    assert said, "it said that it waits"
    return said


def wrong(store: SqlStore, study: str) -> list[str]:
    """What differs from the undisturbed study, and what `store check` finds."""
    return [*violations(see(store, study, []), undisturbed(SPEC)), *faults_of(store)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that finds a lock is given up after less than the usual half minute, and then tried
    again as always."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.3)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that says by how many seconds the store's clock is off."""
    monkeypatch.setattr(database, "datetime", database.datetime)  # brought back afterwards
    set_clock_by(tmp_path / "clock")
    return tmp_path / "clock"


@pytest.mark.usefixtures("impatient")
def test_a_file_that_another_program_locks_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, timeout=60)
    with contextlib.closing(open_store(tmp_path / "store.db")) as store, contextlib.closing(other):
        said = disturbed(
            store, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("ROLLBACK")
        )
    assert "lock" in said[0]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "lock",
    [
        "SELECT 1 FROM studies FOR UPDATE",
        pytest.param("LOCK TABLE studies, trials, events", marks=pytest.mark.slow),
    ],
)
def test_rows_and_tables_that_another_client_locks_are_waited_for(
    server: PostgresServer, lock: str
) -> None:
    import psycopg

    address = server.new_database()
    with contextlib.closing(open_store(address)) as store, psycopg.connect(address) as other:
        said = disturbed(store, lambda: other.execute(lock), other.rollback)
    assert "lock timeout" in said[0]


@contextlib.contextmanager
def disk_of(server: PostgresServer | None, size_mib: int) -> Iterator[Path]:
    """A small file system that the user of PostgreSQL can reach."""
    with tempfile.TemporaryDirectory(prefix="autotune-disk-") as folder:
        os.chmod(folder, 0o755)
        with small_disk(Path(folder, "disk"), size_mib) as disk:
            if server is not None:
                owner = server.data.stat()
                os.chown(disk, owner.st_uid, owner.st_gid)
            yield disk


def test_a_tablespace_without_room_is_waited_for(server: PostgresServer) -> None:
    with disk_of(server, 32) as disk:
        address = server.new_database(tablespace=disk)
        with contextlib.closing(open_store(address)) as store:
            said = disturbed(store, lambda: fill_disk(disk), (disk / "ballast").unlink)
            assert "No space left on device" in said[0]


@pytest.mark.slow
def test_a_server_that_died_for_want_of_disk_is_waited_for() -> None:
    """Without room for its log PostgreSQL ends itself; it is started again when there is room."""
    import psycopg

    with disk_of(None, 160) as disk, postgres_server(parent=disk, fsync=True) as server:
        address = server.new_database()

        def leave_no_room() -> None:
            with psycopg.connect(address, autocommit=True) as client:
                fill_disk(disk)
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        # until it needs another file
                        client.execute("SELECT pg_current_xact_id(), pg_switch_wal()")

        def make_room() -> None:
            (disk / "ballast").unlink()
            server.stop(kill=True)
            server.start()

        with contextlib.closing(open_store(address)) as store:
            disturbed(store, leave_no_room, make_room)
            assert "No space left on device" in server.log.read_text()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_clock_that_jumps_an_hour_forth_and_back(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, clock: Path
) -> None:
    """The lease stays with its controller, budgets and times do not count the jumps, and the study
    comes to the same end."""
    address = (
        request.getfixturevalue("server").new_database()
        if kind == "postgresql"
        else str(tmp_path / "store.db")
    )
    jumps = iter((HOUR_S, -HOUR_S, 0.0, -HOUR_S, HOUR_S))

    def hear(event: LoopEvent) -> None:
        if isinstance(event, TrialEnded):
            clock.write_text(str(next(jumps, 0.0)))

    with contextlib.closing(open_store(address)) as store:
        study = api.submit_study(store, api.load_study(SPEC), SPEC).id
        api.run_study(store, study, on_event=hear, lease_s=1.0)
        assert wrong(store, study) == []
        at = [event.at.timestamp() for event in store.events(study, limit=10_000)]
        assert max(at) - min(at) > HOUR_S, "the clock did jump"
        record = store.study(study)
        assert record.elapsed_s < HOUR_S / 5
        assert [
            event.data["fence"] for event in store.events(study) if event.kind == "study.claimed"
        ] == [1]
        assert html_report(record, store.trials(study)).count("<svg") > 3, (
            "also what is drawn over time"
        )


def test_the_lease_of_a_controller_that_died_while_the_clock_was_ahead(
    store: SqlStore, clock: Path
) -> None:
    """On another machine nobody can tell that it died: the lease runs out when the clock has caught
    up, and not before."""
    study = api.submit_study(store, api.load_study(SPEC), SPEC).id
    clock.write_text(str(HOUR_S))
    assert store.claim(study, "elsewhere:1:1:abc", lease_s=10.0) is not None
    clock.write_text("0")
    assert store.claim(study, "here", lease_s=10.0) is None
    assert store.is_held(study)
    clock.write_text(str(HOUR_S + 11.0))
    assert present(store.claim(study, "here", lease_s=10.0)).fence == 2
