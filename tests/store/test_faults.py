"""The real thing: writers killed, disks full, files read-only or damaged, servers away, controllers
that wake up too late."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from autotune.errors import StoreCorruptError, StoreError, StoreUnavailableError
from autotune.ports import Lease
from autotune.spec import StudyStatus, TrialStatus
from autotune.store import MemoryStore, SqlStore, open_store
from autotune.store.connection import database
from autotune.store.upkeep import maintenance
from autotune.testing.stores import LONG_S, a_study, measured, pending, run_trial, running_study
from tests.chaos.arena import small_disk
from tests.postgresql import PostgresServer, postgres_server
from tests.shortcuts import present
from tests.store.forging import end_of_root_page

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0


class Writer:
    """A child that writes trials; `acknowledged` grows as it says so."""

    def __init__(
        self, address: str, lease: Lease, *options: str, wrapper: tuple[str, ...] = ()
    ) -> None:
        argv = [
            *wrapper,
            sys.executable,
            "-m",
            "tests.store.writer",
            address,
            lease.study,
            str(lease.fence),
            *options,
        ]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.strip())

    @property
    def acknowledged(self) -> set[int]:
        """Numbers of the trials whose end was acknowledged."""
        return {int(line.split()[1]) for line in self.lines if line.startswith("ended")}

    def wait_for(self, word: str, *, beyond: int = 0) -> str:
        """The next line after the first `beyond` ones that begins with the word."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            found = [line for line in self.lines[beyond:] if line.startswith(word)]
            if found:
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        self.process.kill()
        return pytest.fail(
            f"no {word!r} in {self.lines[-5:]}: {self.process.communicate()[1][-2000:]}"
        )

    def kill(self) -> None:
        """SIGKILL, and all that it said is read."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def writer_lease(store: SqlStore) -> Lease:
    """A running study that the writer holds."""
    return running_study(store, owner="writer")


def kept(store: SqlStore, study: str) -> set[int]:
    """Numbers of the trials that are COMPLETED with their measurement."""
    return {
        t.number for t in store.trials(study) if t.status is TrialStatus.COMPLETED and t.is_measured
    }


@pytest.fixture
def crash_server() -> Iterator[PostgresServer]:
    """A server of its own, which forces its log to disk as a real one does."""
    with postgres_server(fsync=True) as server:
        yield server


def test_nothing_acknowledged_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    address, chance = str(tmp_path / "store.db"), random.Random(0)
    store = open_store(address)
    lease = writer_lease(store)
    acknowledged: set[int] = set()
    for _ in range(3):
        writer = Writer(address, lease)
        try:
            writer.wait_for("ended")
            time.sleep(chance.random() / 5)
        finally:
            writer.kill()
        acknowledged |= writer.acknowledged
        assert acknowledged <= kept(store, lease.study)
        assert maintenance.check(store) == []
    assert len(kept(store, lease.study)) <= len(acknowledged) + 3, (
        "at most the one under way is there beyond them"
    )
    store.close()


@pytest.mark.thorough
def test_a_server_without_connections_has_a_remedy(
    crash_server: PostgresServer,
) -> None:
    import psycopg

    address = crash_server.new_database()
    with psycopg.connect(crash_server.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE limited LOGIN SUPERUSER CONNECTION LIMIT 0")
        connection.execute("ALTER ROLE limited NOSUPERUSER")
    with pytest.raises(StoreUnavailableError, match="out of connections") as refused:
        open_store(address.replace("autotune@", "limited@"))
    assert "max_connections" in refused.value.remedy


@pytest.mark.thorough
def test_a_server_that_crashes_and_restarts_loses_nothing(
    crash_server: PostgresServer,
) -> None:
    address = crash_server.new_database()
    store = open_store(address)
    lease = writer_lease(store)
    writer = Writer(address, lease)
    try:
        writer.wait_for("ended")
        crash_server.stop(kill=True)
        assert "store_unavailable" in writer.wait_for("refused")
        with pytest.raises(StoreUnavailableError) as away:
            store.submit(a_study(), {})
        assert away.value.remedy
        crash_server.start()
        said = len(writer.lines)
        writer.wait_for("ended", beyond=said)
        store.submit(a_study("afterwards"), {})
        writer.kill()
        assert writer.acknowledged <= kept(store, lease.study)
        assert maintenance.check(store) == []
    finally:
        writer.kill()
        store.close()


@pytest.mark.thorough
def test_a_controller_resumed_after_its_lease_changes_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(address)
    lease = writer_lease(store)
    writer = Writer(address, lease)
    try:
        writer.wait_for("ended")
        freeze_between_writes(writer, address, lease, monkeypatch)
        newer = present(store.claim(lease.study, "newer", lease_s=LONG_S))
        before = repr(store.trials(lease.study))
        writer.process.send_signal(signal.SIGCONT)
        writer.wait_for("fenced")
        assert repr(store.trials(lease.study)) == before
        run_trial(store, newer, measured(pending(len(store.trials(lease.study)))))
        assert maintenance.check(store) == []
    finally:
        writer.kill()
        store.close()


def freeze_between_writes(
    writer: Writer, address: str, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the writer while it holds no lock of the database, and lets its lease run out."""
    with monkeypatch.context() as hurried:
        hurried.setattr(database, "BUSY_TIMEOUT_S", 0.2)
        hasty = open_store(address)
    end = time.monotonic() + DEADLINE_S
    try:
        while True:
            writer.process.send_signal(signal.SIGSTOP)
            try:
                hasty.renew(lease, lease_s=0)
                return
            except StoreUnavailableError:
                writer.process.send_signal(signal.SIGCONT)
                if time.monotonic() > end:
                    raise
                time.sleep(random.random() / 10)
    finally:
        hasty.close()


def test_a_full_disk_is_an_error_and_work_continues_afterwards(tmp_path: Path) -> None:
    address = str(tmp_path / "store.db")
    store = open_store(address)
    lease = writer_lease(store)
    limit = (tmp_path / "store.db-wal").stat().st_size + 200_000
    writer = Writer(address, lease, str(limit))
    try:
        refusal = writer.wait_for("refused")
        assert "disk" in refusal
        assert "store_unavailable" in refusal
        acknowledged = writer.acknowledged
        assert acknowledged <= kept(store, lease.study), (
            "what was acknowledged can be read while the disk is full"
        )
        said = len(writer.lines)
        assert writer.process.stdin is not None
        writer.process.stdin.write("\n")
        writer.process.stdin.flush()
        writer.wait_for("ended", beyond=said)
    finally:
        writer.kill()
    assert writer.acknowledged <= kept(store, lease.study)
    assert maintenance.check(store) == []
    store.close()


@pytest.mark.thorough
def test_a_full_file_system_is_an_error_and_work_continues_afterwards(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", size_mib=2) as folder,
        contextlib.closing(open_store(folder / "store.db")) as store,
    ):
        lease = running_study(store)
        ballast = folder / "ballast"
        with pytest.raises(StoreUnavailableError, match="disk") as full:
            fill_up(store, lease, ballast)
        assert full.value.remedy
        before = kept(store, lease.study)
        ballast.unlink()
        store.set_status(lease.study, StudyStatus.PAUSED, expect=[StudyStatus.RUNNING], lease=lease)
        assert before <= kept(store, lease.study)
        assert maintenance.check(store) == []


def fill_up(store: SqlStore, lease: Lease, ballast: Path) -> None:
    """Writes trials while something else fills the disk."""
    for number in range(10_000):
        with contextlib.suppress(OSError), ballast.open("ab") as file:
            file.write(b"x" * 50_000)
        run_trial(store, lease, measured(pending(number)))


def test_a_read_only_file_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    store = open_store(folder / "store.db")
    lease = writer_lease(store)
    store.close()
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    writer = Writer(str(folder / "store.db"), lease, wrapper=without_override())
    try:
        said = writer.wait_for("refused")  # it can be opened and read
        assert "writable" in said or "may write" in said
    finally:
        writer.kill()
        folder.chmod(0o755)


def without_override() -> tuple[str, ...]:
    """What runs a program so that permissions bind it: root has to give up the right to pass over
    them."""
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root needs `setpriv` (util-linux) to be bound by permissions")
    return (
        setpriv,
        "--bounding-set=-dac_override,-dac_read_search",
        "--inh-caps=-dac_override,-dac_read_search",
        "--",
    )


@pytest.mark.parametrize(
    "content", [b"no database at all\n" * 500, b"SQLite format 3\0" + b"\xff" * 8176]
)
def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError) as damaged:
        open_store(path)
    assert "backup" in damaged.value.remedy
    assert path.read_bytes() == content, (
        "a damaged file is left for whoever can save something from it"
    )


def kept_in(path: Path, *, trials: int) -> str:
    """A closed file with a study of so many trials."""
    with contextlib.closing(open_store(path)) as store:
        lease = running_study(store)
        for number in range(trials):
            run_trial(store, lease, measured(pending(number)))
        maintenance.vacuum(store)
    return lease.study


def test_damage_inside_the_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    kept = kept_in(path, trials=50)
    pages = bytearray(path.read_bytes())
    for start in range(8192, len(pages), 8192):
        pages[start : start + 64] = b"\xa5" * 64
    path.write_bytes(bytes(pages))
    with pytest.raises(StoreCorruptError):
        read_all(path, kept)


def test_check_detects_damage_that_no_query_reads(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    kept = kept_in(path, trials=20)
    end, _ = end_of_root_page(path, "ix_records_cluster")
    content = bytearray(path.read_bytes())
    content[end - 16 : end] = b"\xa5" * 16  # the end of the index's page: its first entry
    path.write_bytes(bytes(content))
    with contextlib.closing(open_store(path)) as damaged:
        assert len(damaged.trials(kept)) == 20
        assert any("the file is damaged" in fault for fault in maintenance.check(damaged))


def read_all(path: Path, study: str) -> None:
    """Opens the store and reads all trials of a study."""
    with contextlib.closing(open_store(path)) as store:
        store.trials(study)


def test_a_writer_waits_for_the_lock_until_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = open_store(tmp_path / "store.db")
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.1)
    hasty = open_store(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            hasty.submit(a_study(), {})
        assert hasty.studies() == [], "readers never wait"
        later = threading.Timer(0.5, other.execute, ["COMMIT"])
        later.start()
        patient.submit(a_study(), {})
        later.join()
    finally:
        other.close()
        hasty.close()
        patient.close()


def _claim(address: str, study: str, gate: object, name: int) -> list[int]:
    store = open_store(address)
    gate.wait(DEADLINE_S)  # type: ignore[attr-defined]
    leases = [store.claim(study, f"{name}-{i}", lease_s=LONG_S) for i in range(25)]
    for i in range(10):
        store.record_event(study, "study.note", {"from": name, "i": i})
    store.close()
    return [lease.fence for lease in leases if lease]


@pytest.mark.thorough
def test_one_of_a_hundred_concurrent_claims_succeeds(address: str) -> None:
    store = open_store(address)
    study = store.submit(a_study(), {}).id
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(4) as pool:
        gate = manager.Barrier(4)
        jobs = [pool.apply_async(_claim, (address, study, gate, name)) for name in range(4)]
        fences = [fence for job in jobs for fence in job.get(DEADLINE_S)]
    assert fences == [1]
    assert [event.kind for event in store.events(study)].count("study.note") == 40
    assert maintenance.check(store) == []
    store.close()


def test_errors_of_drivers_are_converted(store: SqlStore, tmp_path: Path) -> None:
    store.submit(a_study(), {})
    store.close()
    (tmp_path / "store.db").unlink()
    for stale in tmp_path.glob("store.db-*"):
        stale.unlink()
    with pytest.raises(StoreError):
        store.studies()


@pytest.mark.thorough
def test_threads_open_stores_at_the_same_time() -> None:
    """Alembic's globals must not let one thread migrate another's database."""

    def submit(_: int) -> int:
        with contextlib.closing(MemoryStore()) as store:
            store.submit(a_study("mine"), {})
            return len(store.studies())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(submit, range(32))) == [1] * 32
