"""A study's folder that several machines see: its store is on the disk of the machine that runs it,
and the folder holds copies, wishes and who runs it.

    store.db       the last copy: complete, put in place in one step, after every trial and every few seconds. Nobody opens it where it lies
    runs.json      the process that runs the study; touched with every look, so that a silent one can be told from a living one without comparing clocks
    wish-NAME      what people want (pause, resume, stop, cancel), from another machine; taken away when it was passed on

SQLite itself must not lie there: the locks of two machines may not meet (`file_systems`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.errors import ConflictError, NotFoundError, StoreUnavailableError
from autotune.store import open_store, schema
from autotune.store.sql import SqlStore
from autotune.study.process_id import is_gone, this_process
from autotune.temporary_folders import TemporaryFolder
from autotune.whole_files import whole_file

COPY, HOLDER, WISH = "store.db", "runs.json", "wish-"
COPY_S = 5.0
"""the longest time between two copies while something changes, and between two signs of life"""
LOOK_S = 1.0
"""between two looks for wishes and changes"""
SILENT_S = 30.0
"""without a sign of life, after which the process that runs the study counts as gone"""


class StudyFolder:
    """The folder while this process runs the study. A context manager: leaving it makes the last
    copy and gives the folder back."""

    def __init__(
        self,
        folder: Path,
        *,
        job: str = "",
        on_wish: Callable[[str], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`job`: the scheduler's number of the job, whose later start takes over from an earlier
        one; `on_wish`: is told what people want; `on_trouble`: of copies that fail."""
        self._folder, self._job, self._on_wish, self._on_trouble = folder, job, on_wish, on_trouble
        self._local: TemporaryFolder | None = None
        self._me = {"process": this_process(), "job": job}
        self._asked, self._closed = threading.Event(), threading.Event()
        self._copying = threading.Lock()
        self._thread = threading.Thread(
            target=self._keep, name="autotune-study-folder", daemon=True
        )
        self._version, self._copied_s, self._trouble = 0, 0.0, ""
        self.path = Path()
        """the store on this machine's disk"""

    def __enter__(self) -> StudyFolder:
        if not self._folder.is_dir():
            raise NotFoundError(
                f"there is no folder {self._folder}", remedy="pass a study folder with --in"
            )
        self._claim()
        # of a job that was killed before it heard or ended them
        for old in (*self._folder.glob(f"{WISH}*"), *self._folder.glob(f".{COPY}.*.part")):
            old.unlink(missing_ok=True)
        try:
            self._local = TemporaryFolder("study")
            self.path = self._local.path / COPY
            if (self._folder / COPY).exists():
                schema.make_private(self.path)
                shutil.copyfile(self._folder / COPY, self.path)
            open_store(self.path).close()  # upgraded, or refused, before anything runs
        except BaseException:
            self._give_back()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._asked.set()
        self._thread.join()
        is_kept = False
        try:
            if self._is_mine():
                self.copy()
            is_kept = True
        except OSError as error:
            raise StoreUnavailableError(
                f"the last copy of the store could not be written to {self._folder}: {error}",
                remedy=f"free some space there, then copy {self.path} on {os.uname().nodename} to {self._folder / COPY}",
            ) from None
        finally:
            self._give_back(keep_local=not is_kept)

    def changed(self) -> None:
        """Something worth a copy has happened: a trial has ended."""
        self._asked.set()

    def copy(self) -> None:
        """Puts a copy of the store into the folder, completely or not at all. Raises `OSError`."""
        with self._copying:
            local = self.path.with_name("copy.db")
            local.unlink(missing_ok=True)
            schema.back_up(self.path, local)
            with whole_file(self._folder / COPY) as part:
                shutil.copyfile(local, part)

    def _keep(self) -> None:
        with contextlib.closing(
            sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)
        ) as watcher:
            while not self._closed.is_set():
                is_asked = self._asked.wait(LOOK_S)
                self._asked.clear()
                if self._closed.is_set():
                    return
                try:
                    self._look(watcher, is_asked)
                except (OSError, sqlite3.Error) as error:
                    if self._local is not None:
                        self._local.keep()  # it may have the only results
                    if str(error) != self._trouble:
                        self._on_trouble(
                            f"the store cannot be copied to {self._folder} right now: {error}"
                        )
                    self._trouble = str(error)

    def _look(self, watcher: sqlite3.Connection, is_asked: bool) -> None:
        self._pass_wishes()
        now_s = time.monotonic()
        if not is_asked and now_s - self._copied_s < COPY_S:
            return
        if not self._is_mine():
            self._on_trouble(
                f"another process is running the study in {self._folder}, so this process stops copying and pauses the study"
            )
            self._on_wish("pause")
            self._closed.set()
            return
        os.utime(self._folder / HOLDER)
        version = int(watcher.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version:
            self._version = version
            self.copy()
        self._copied_s, self._trouble = now_s, ""

    def _pass_wishes(self) -> None:
        for file in sorted(self._folder.glob(f"{WISH}*")):
            file.unlink(missing_ok=True)
            self._on_wish(file.name.removeprefix(WISH))

    def _claim(self) -> None:
        """Makes this process the one that runs the study. Raises `ConflictError` while another one
        lives."""
        mine = self._folder / f".{HOLDER}.{os.uname().nodename}-{os.getpid()}"
        mine.write_text(json.dumps(self._me))
        try:
            if (other := holder_of(self._folder)) is not None and not self._is_over(other):
                raise ConflictError(
                    f"the study in {self._folder} is being run by {_named(other)}",
                    remedy=f"wait for that process, or end it; if it has crashed, remove {HOLDER} from the folder",
                )
            mine.replace(self._folder / HOLDER)
        finally:
            mine.unlink(missing_ok=True)
        time.sleep(0.2)
        if not self._is_mine():  # two claimed it at once: the last one has it
            raise ConflictError(
                f"the study in {self._folder} has just been started by another process",
                remedy="wait until that process ends",
            )

    def _is_over(self, other: dict[str, str]) -> bool:
        """Whether the process that ran the study is gone: an earlier start of this job, a process
        of this machine that has ended, or one without a sign of life."""
        if (self._job and other.get("job") == self._job) or is_gone(str(other.get("process", ""))):
            return True
        seen, end_s = _touched(self._folder), time.monotonic() + SILENT_S
        while _touched(self._folder) == seen:
            if time.monotonic() > end_s:
                return True
            time.sleep(LOOK_S)
        return holder_of(self._folder) is None

    def _is_mine(self) -> bool:
        return holder_of(self._folder) == self._me

    def _give_back(self, *, keep_local: bool = False) -> None:
        if self._is_mine():
            (self._folder / HOLDER).unlink(missing_ok=True)
        if self._local is not None and keep_local:
            self._local.keep()
        elif self._local is not None:
            self._local.remove()


def holder_of(folder: Path) -> dict[str, str] | None:
    """The process that runs the study, {process, job}; None if nothing runs it."""
    try:
        found: Any = json.loads((folder / HOLDER).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _touched(folder: Path) -> int:
    os.listdir(folder)  # has a network file system look again
    with contextlib.suppress(OSError):
        return (folder / HOLDER).stat().st_mtime_ns
    return 0


def _named(holder: dict[str, str]) -> str:
    host, _, rest = str(holder.get("process", "")).partition(":")
    job = f"job {holder['job']}, " if holder.get("job") else ""
    return f"{job}process {rest.partition(':')[0]} on {host}"


def wish(folder: Path, action: str) -> None:
    """Leaves a wish for the process that runs the study. Raises `ConflictError` when nobody
    does."""
    if holder_of(folder) is None:
        raise ConflictError(
            f"no process is running the study in {folder}, so {action!r} would have no effect",
            remedy="remove a waiting job with `scancel`; a job that has ended continues when it is submitted again",
        )
    (folder / f"{WISH}{action}").touch(mode=0o600)


@contextlib.contextmanager
def opened_copy(folder: Path) -> Iterator[SqlStore]:
    """The last copy of the store, to be read: a copy of the copy, as nobody may open what lies in
    the folder. Raises `NotFoundError` before there is one."""
    with TemporaryFolder("copy") as place:
        path = place / COPY
        schema.make_private(path)
        try:
            shutil.copyfile(folder / COPY, path)
        except OSError:
            raise NotFoundError(
                f"there are no results in {folder} yet",
                remedy="wait until the study's job has started (`squeue --me`), or use another folder",
            ) from None
        with contextlib.closing(open_store(path)) as store:
            yield store
