"""Runs a schedule: real controller processes on a real database are disturbed, and then watched
until the study has ended.

Controllers are started by the arena, which sees to it that there is one, or by two supervisors,
which have to see to it by themselves. Either way the arena knows them by their journals, which are
named as they are on leases.

What the arena starts is forked from a server that has imported everything once, so that the start
of a controller costs milliseconds. Nothing waits for time to pass where it can wait for progress;
every wait has a deadline.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

import pytest

from autotune import api
from autotune.store import MemoryStore, SqlStore, open_store
from autotune.study.process_id import is_gone
from autotune_workers.process.machine import descendants
from tests.chaos import controller, supervisor, warm
from tests.chaos.checker import Journal, Seen, terms, violations
from tests.chaos.replay.faults import faults_of
from tests.chaos.schedule import Disturbance, Schedule
from tests.postgresql import PostgresServer

DEADLINE_S = 900.0
"""for a schedule as a whole"""
TURN_S = 8.0
"""for another controller to take over from a frozen one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a schedule."""

    schedule: Schedule
    met: tuple[str, ...]
    """the disturbances that came while the study ran"""
    controllers: int
    """processes"""
    supervisors: int
    """processes"""
    terms: int
    """how many of them had the study, one after the other"""
    fenced: int
    """how many found that another had taken over"""
    waited: int
    """how often a controller said that it waits for its database"""
    trials: tuple[str, ...]
    """purpose and config of each"""
    wrong: tuple[str, ...]
    took_s: float


class Where(Protocol):
    """A database that can be taken away."""

    address: str

    def take_away(self, disturbance: Disturbance) -> None:
        """Takes it away for so long, and brings it back."""
        ...

    def is_free(self) -> bool:
        """Whether no process keeps others from writing."""
        ...


class SqliteFile:
    """A file that somebody else locks."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)

    def take_away(self, disturbance: Disturbance) -> None:
        """Holds the lock of writers."""
        with contextlib.closing(
            sqlite3.connect(self.address, isolation_level=None, timeout=TURN_S)
        ) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return  # whoever holds the lock is frozen
            time.sleep(disturbance.for_s)
            other.execute("COMMIT")

    def is_free(self) -> bool:
        """Whether the lock of writers can be had."""
        with contextlib.closing(
            sqlite3.connect(self.address, isolation_level=None, timeout=0.2)
        ) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            other.execute("ROLLBACK")
            return True


class Served:
    """A database of a server that is stopped, or crashes."""

    def __init__(self, server: PostgresServer, address: str) -> None:
        self.server, self.address = server, address

    def take_away(self, disturbance: Disturbance) -> None:
        """Stops the server and starts it again."""
        self.server.stop(kill=disturbance.crash)
        time.sleep(disturbance.for_s)
        self.server.start()

    def is_free(self) -> bool:
        """A frozen client locks a row at most, and loses its transaction after a while."""
        return True


class Locked(Served):
    """A database in which another client locks the rows of all studies."""

    def take_away(self, disturbance: Disturbance) -> None:
        """Holds the locks; studies can be read meanwhile."""
        import psycopg

        with psycopg.connect(self.address) as other:
            other.execute("SELECT 1 FROM studies FOR UPDATE")
            time.sleep(disturbance.for_s)


class Replicated:
    """A database of a server that crashes for good; its standby takes its place."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, database: str) -> None:
        """`database`: its name."""
        self.primary, self.standby = primary, standby
        servers = f"host=127.0.0.1,127.0.0.1&port={primary.port},{standby.port}"
        self.address = (
            f"postgresql://autotune@/{database}?{servers}&target_session_attrs=read-write"
        )

    def take_away(self, disturbance: Disturbance) -> None:
        """Kills the primary, and makes the standby the primary after a while."""
        self.primary.stop(kill=True)
        time.sleep(disturbance.for_s)
        self.standby.promote()

    def is_free(self) -> bool:
        """As with any server."""
        return True


class Arena:
    """One study, its controllers and what they wrote down."""

    def __init__(self, schedule: Schedule, where: Where, folder: Path) -> None:
        self.schedule, self.where, self.folder = schedule, where, folder
        for name in ("journals", "clocks"):
            (folder / name).mkdir(parents=True)
        self.store: SqlStore = open_store(where.address)
        study = api.load_study(schedule.spec)
        self.study_id = api.submit_study(self.store, study, schedule.spec).id
        self.supervisors: list[ForkServerProcess] = []
        self.frozen: list[str] = []
        self.deadline = time.monotonic() + DEADLINE_S
        self.met: list[str] = []
        """the disturbances that came while the study ran"""
        self._started: list[ForkServerProcess] = []

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.join(DEADLINE_S)
        end = time.monotonic() + DEADLINE_S
        while (left := self._of_supervisors()) and time.monotonic() < end:
            kill(left)
            time.sleep(0.02)
        self.store.close()

    def play(self) -> Seen:
        """Disturbs the study, then lets it end, and tells what is to be seen."""
        if self.schedule.is_supervised:
            self.start_supervisor()
            self.start_supervisor()
        for disturbance in self.schedule.disturbances:
            if not self.wait_for_progress(disturbance.after):
                break
            self.met.append(disturbance.kind)
            getattr(self, f"_{disturbance.kind}")(disturbance)
        self.wait_for_the_end()
        return see(self.store, self.study_id, self.journals())

    def start_controller(self) -> None:
        """Another controller process; it waits for its turn when the study is held."""
        process = self._start(
            controller.main, self.study_id, str(self.folder), self.schedule.lease_s
        )
        self._wait(
            lambda: (
                process.exitcode is not None
                or any(pid_of(c) == process.pid for c in self.controllers())
            )
        )

    def start_supervisor(self) -> None:
        """Another supervisor process."""
        logs, journals = self._logs(), str(self.folder)
        self.supervisors.append(self._start(supervisor.main, logs, self.schedule.lease_s, journals))

    def controllers(self) -> list[str]:
        """All that there were, by their names on leases, the oldest first."""
        return sorted(
            os.listdir(self.folder / "journals"), key=lambda owner: int(owner.split(":")[2])
        )

    def journals(self) -> list[Journal]:
        """What all controllers wrote down so far."""
        return [self._journal(owner) for owner in self.controllers()]

    def wait_for_progress(self, lines: int) -> bool:
        """Waits until the controllers wrote so many lines more; False when the study ended."""
        enough = self._written() + lines
        self._until(lambda: self._written() >= enough or self._is_over())
        return not self._is_over()

    def wait_for_the_end(self) -> None:
        """Waits until the study has ended and its controllers have left."""
        self._until(self._is_over)
        self._until(lambda: not self._awake())

    # ---- disturbances

    def _kill(self, _: Disturbance) -> None:
        awake = self._awake()
        for owner in awake:
            send(owner, signal.SIGKILL)
        self._wait(lambda: all(map(is_gone, awake)))

    def _kill_and_race(self, disturbance: Disturbance) -> None:
        self._kill(disturbance)
        for _ in range(3):
            self.start_controller()

    def _rival(self, _: Disturbance) -> None:
        if len(self._awake()) < 3:
            self.start_controller()

    def _freeze(self, _: Disturbance) -> None:
        """The others keep running: one of them, or a new one, takes over when the lease has run
        out."""
        awake = self._awake()
        if not awake:
            return
        holder = self._holder(awake)
        send(holder, signal.SIGSTOP)
        while not self.where.is_free() and not is_gone(holder) and time.monotonic() < self.deadline:
            send(
                holder, signal.SIGCONT
            )  # frozen inside a transaction it keeps everybody from writing, see `autotune.store.connection.database`
            time.sleep(0.01)
            send(holder, signal.SIGSTOP)
        self.frozen.append(holder)
        claims, end = self._claims(), time.monotonic() + TURN_S
        self._until(lambda: self._claims() > claims or time.monotonic() > end or self._is_over())
        if self._claims() > claims:
            self.wait_for_progress(2)
        send(holder, signal.SIGCONT)
        self.frozen.remove(holder)

    def _clock(self, disturbance: Disturbance) -> None:
        for owner in self._awake()[::2]:
            (self.folder / "clocks" / owner).write_text(str(disturbance.jump_s))

    def _database(self, disturbance: Disturbance) -> None:
        self.where.take_away(disturbance)

    def _supervisor(self, disturbance: Disturbance) -> None:
        oldest = self.supervisors.pop(0)
        kill([oldest.pid, *(descendants(oldest.pid) if disturbance.crash else ())])
        oldest.join(DEADLINE_S)
        self.start_supervisor()

    def _rank(self, disturbance: Disturbance) -> None:
        ranks: list[int] = []

        def are_found() -> bool:
            ranks[:] = rank_processes() if self._is_measuring() else ()
            return bool(ranks) or self._is_over()

        self._until(are_found)
        kill(ranks and [ranks[disturbance.which % len(ranks)]])

    # ---- looking

    def _awake(self) -> list[str]:
        return [
            owner for owner in self.controllers() if not is_gone(owner) and owner not in self.frozen
        ]

    def _holder(self, awake: list[str]) -> str:
        lease = self.store.holder(self.study_id)
        return lease.owner if lease and lease.owner in awake else awake[0]

    def _is_measuring(self) -> bool:
        """Whether the last thing that the study's controller was told is that an attempt runs."""
        lease = self.store.holder(self.study_id)
        lines = self._journal(lease.owner).lines if lease and lease.owner in self._awake() else ()
        return bool(lines) and lines[-1].kind == "started"

    def _claims(self) -> int:
        return terms(self.store.events(self.study_id, limit=100_000))

    def _written(self) -> int:
        return sum(line.kind != "waits" for journal in self.journals() for line in journal.lines)

    def _journal(self, owner: str) -> Journal:
        return controller.read_journal(self.folder / "journals" / owner)

    def _is_over(self) -> bool:
        return self.store.study(self.study_id).status.is_terminal

    # ---- processes

    def _start(self, main: Callable[..., None], *args: Any) -> ForkServerProcess:
        process: ForkServerProcess = forkserver().Process(
            target=main, args=(self.where.address, *args), daemon=True
        )
        process.start()
        self._started.append(process)
        return process

    def _until(self, condition: Callable[[], bool]) -> None:
        """Waits; where no supervisor does, it keeps a controller alive meanwhile."""
        self._wait(condition, self._keep_one_alive)

    def _wait(
        self, condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        while not condition():
            time.sleep(0.05)
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"the study does not end: {self._describe()}")
            meanwhile()

    def _keep_one_alive(self) -> None:
        if not self.schedule.is_supervised and not self._awake() and not self._is_over():
            self.start_controller()

    def _logs(self) -> str:
        return str(self.folder / "logs")

    def _of_supervisors(self) -> list[int]:
        """Process numbers of the fork servers and their children: those with the log folder on
        their command line."""
        return [pid for pid, words in command_lines() if self._logs().encode() in words]

    def _describe(self) -> str:
        last = [journal.lines[-1:] for journal in self.journals()]
        return f"{self.schedule}; {self.store.study(self.study_id)}; {last}"


class SmallDisk(SqliteFile):
    """A file on a file system that something else fills up."""

    def take_away(self, disturbance: Disturbance) -> None:
        """Leaves no byte free for a while."""
        ballast = fill_disk(Path(self.address).parent)
        time.sleep(disturbance.for_s)
        ballast.unlink()


def fill_disk(folder: Path) -> Path:
    """Leaves no byte free on the file system; returns the file that takes the room."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return ballast


@contextlib.contextmanager
def small_disk(folder: Path, size_mib: int = 8) -> Iterator[Path]:
    """A file system of so many MiB; the test is skipped where none may be mounted."""
    folder.mkdir()
    mount = shutil.which("mount")
    argv = [mount or "", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0 or subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("only root mounts file systems, and not in every container")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def see(store: SqlStore, study_id: str, journals: list[Journal]) -> Seen:
    """A study as the store has it."""
    trials = store.trials(study_id)
    return Seen(
        record=store.study(study_id),
        trials=trials,
        events=store.events(study_id, limit=1_000_000),
        steps={t.number: store.steps(study_id, t.number) for t in trials if t.attempts},
        journals=journals,
    )


def undisturbed(spec: dict[str, Any]) -> Seen:
    """The same study as nothing disturbs it, played at once."""
    return _undisturbed(json.dumps(spec | {"runner": spec["runner"] | {"time_scale": 0.0}}))


@functools.cache
def _undisturbed(spec: str) -> Seen:
    with contextlib.closing(MemoryStore()) as store:
        return see(store, api.tune(json.loads(spec), store=store).record.id, [])


def play(schedule: Schedule, where: Where, folder: Path) -> Played:
    """Plays a schedule and checks what is left of it."""
    began = time.monotonic()
    with Arena(schedule, where, folder) as arena:
        seen = arena.play()
        wrong = [
            *violations(seen, None if schedule.is_real else undisturbed(schedule.spec)),
            *faults_of(arena.store),
        ]
        return Played(
            schedule=schedule,
            met=tuple(arena.met),
            controllers=len(arena.controllers()),
            supervisors=len(arena.supervisors) + arena.met.count("supervisor"),
            terms=terms(seen.events),
            fenced=sum(map(was_fenced, seen.journals)),
            waited=sum(line.kind == "waits" for journal in seen.journals for line in journal.lines),
            trials=tuple(f"{t.purpose} {t.config}" for t in seen.trials),
            wrong=tuple(f"{schedule}: {sentence}" for sentence in wrong),
            took_s=time.monotonic() - began,
        )


def was_fenced(journal: Journal) -> bool:
    """Whether this controller had the study, and found that another has."""
    return any(line.kind == "opened" for line in journal.lines) and journal.lines[
        -1
    ].said.startswith("conflict")


def play_all(
    schedules: Iterable[Schedule], places: Iterable[Callable[[Schedule], Where]], folder: Path
) -> list[Played]:
    """Plays all schedules, on each place one after the other, on different places at once."""
    waiting, lock = iter(schedules), threading.Lock()

    def work(place: Callable[[Schedule], Where]) -> list[Played]:
        played = []
        while True:
            with lock:
                schedule = next(waiting, None)
            if schedule is None:
                return played
            played.append(play(schedule, place(schedule), folder / str(schedule.seed)))
            with lock, (folder / "played").open("a") as file:
                file.write(f"{played[-1]}\n")  # what a long run that is cut short leaves behind

    forkserver()
    chosen = list(places)
    with ThreadPoolExecutor(len(chosen)) as pool:
        return [one for played in pool.map(work, chosen) for one in played]


def pid_of(owner: str) -> int:
    """The process of that name, see `autotune.study.process_id`."""
    return int(owner.split(":")[1])


def send(owner: str, number: int) -> None:
    """A signal, if the process is still there."""
    if not is_gone(owner):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_of(owner), number)


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """Of all processes but zombies."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), path.read_bytes().split(b"\0")


def rank_processes() -> list[int]:
    """The ranks of this test run, what they were forked from, and on Ray their actors."""
    words = dict(command_lines())
    marks = (b"autotune_workers.process.fork_server", b"ray::AutotuneRank")
    return sorted(
        pid
        for pid in descendants(os.getpid())
        if any(word.startswith(marks) for word in words.get(pid, ()))
    )


@functools.cache
def forkserver() -> Any:
    """Forks controllers that need not import anything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([warm.__name__])
    return context
