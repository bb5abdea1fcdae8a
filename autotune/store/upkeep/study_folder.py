"""The folder of a study on a shared file system. The store is on the local disk of the machine that
runs the study, because SQLite files may be corrupted on shared file systems (`file_systems`).

    store.db       last complete copy of the store, replaced atomically after every trial and every few seconds; never opened in place
    runs.json      the process that runs the study; touched regularly, so that other machines detect its death without comparing clocks
    wish-NAME      a request (pause, resume, stop, cancel) from another machine; removed when it is handled
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
"""interval between copies of a changing store, and between touches of runs.json, s"""
LOOK_S = 1.0
"""interval between checks for requests and changes, s"""
SILENT_S = 30.0
"""time without a touch after which the process that runs the study counts as dead, s"""


class StudyFolder:
    """A context manager for the process that runs the study. On exit it makes the last copy and
    releases the folder."""

    def __init__(
        self,
        folder: Path,
        *,
        job: str = "",
        on_request: Callable[[str], None] = lambda _: None,
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`job`: the scheduler's id of the job, whose restart takes over the folder; `on_request`:
        called with each request of users; `on_error`: called with the message of a failed copy."""
        self._folder, self._job, self._on_request, self._on_error = (
            folder,
            job,
            on_request,
            on_error,
        )
        self._local: TemporaryFolder | None = None
        self._me = {"process": this_process(), "job": job}
        self._changed, self._closed = threading.Event(), threading.Event()
        self._copying = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="autotune-study-folder", daemon=True)
        self._version, self._copied_s, self._last_error = 0, 0.0, ""
        self.path = Path()
        """the store on the local disk"""

    def __enter__(self) -> StudyFolder:
        if not self._folder.is_dir():
            raise NotFoundError(
                f"there is no folder {self._folder}", remedy="pass a study folder with --in"
            )
        self._claim()
        # requests and partial copies of a job that was killed
        for old in (*self._folder.glob(f"{WISH}*"), *self._folder.glob(f".{COPY}.*.part")):
            old.unlink(missing_ok=True)
        try:
            self._local = TemporaryFolder("study")
            self.path = self._local.path / COPY
            if (self._folder / COPY).exists():
                schema.make_private(self.path)
                shutil.copyfile(self._folder / COPY, self.path)
            open_store(self.path).close()  # upgrade it, or raise, before trials start
        except BaseException:
            self._release()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._changed.set()
        self._thread.join()
        is_copied = False
        try:
            if self._is_mine():
                self.copy()
            is_copied = True
        except OSError as error:
            raise StoreUnavailableError(
                f"the last copy of the store could not be written to {self._folder}: {error}",
                remedy=f"free some space there, then copy {self.path} on {os.uname().nodename} to {self._folder / COPY}",
            ) from None
        finally:
            self._release(keep_local=not is_copied)

    def changed(self) -> None:
        """Copy the store soon, because a trial has ended."""
        self._changed.set()

    def copy(self) -> None:
        """Copy the store to the folder, completely or not at all. Raises `OSError`."""
        with self._copying:
            local = self.path.with_name("copy.db")
            local.unlink(missing_ok=True)
            schema.back_up(self.path, local)
            with whole_file(self._folder / COPY) as part:
                shutil.copyfile(local, part)

    def _run(self) -> None:
        """Handle requests and copy changes until the folder is released."""
        with contextlib.closing(
            sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)
        ) as watcher:
            while not self._closed.is_set():
                is_urgent = self._changed.wait(LOOK_S)
                self._changed.clear()
                if self._closed.is_set():
                    return
                try:
                    self._update(watcher, is_urgent)
                except (OSError, sqlite3.Error) as error:
                    if self._local is not None:
                        self._local.keep()  # it may have the only results
                    if str(error) != self._last_error:
                        self._on_error(
                            f"the store cannot be copied to {self._folder} right now: {error}"
                        )
                    self._last_error = str(error)

    def _update(self, watcher: sqlite3.Connection, is_urgent: bool) -> None:
        """Handle requests. If it is urgent, or `COPY_S` after the last time, touch runs.json and
        copy a changed store."""
        self._handle_requests()
        now_s = time.monotonic()
        if not is_urgent and now_s - self._copied_s < COPY_S:
            return
        if not self._is_mine():
            self._on_error(
                f"another process is running the study in {self._folder}, so this process stops copying and pauses the study"
            )
            self._on_request("pause")
            self._closed.set()
            return
        os.utime(self._folder / HOLDER)
        version = int(watcher.execute("PRAGMA data_version").fetchone()[0])
        if version != self._version:
            self._version = version
            self.copy()
        self._copied_s, self._last_error = now_s, ""

    def _handle_requests(self) -> None:
        """Pass each request to `on_request`, and remove its file."""
        for file in sorted(self._folder.glob(f"{WISH}*")):
            file.unlink(missing_ok=True)
            self._on_request(file.name.removeprefix(WISH))

    def _claim(self) -> None:
        """Write this process to runs.json. Raises `ConflictError` if another live process runs the
        study."""
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
        if not self._is_mine():  # of two processes that claim it at once, the last one wins
            raise ConflictError(
                f"the study in {self._folder} has just been started by another process",
                remedy="wait until that process ends",
            )

    def _is_over(self, other: dict[str, str]) -> bool:
        """Return whether the process in runs.json is dead: from an earlier start of this job, a
        process of this machine that has ended, or one that does not touch runs.json for
        `SILENT_S`."""
        if (self._job and other.get("job") == self._job) or is_gone(str(other.get("process", ""))):
            return True
        touched_ns, deadline_s = _touched(self._folder), time.monotonic() + SILENT_S
        while _touched(self._folder) == touched_ns:
            if time.monotonic() > deadline_s:
                return True
            time.sleep(LOOK_S)
        return holder_of(self._folder) is None

    def _is_mine(self) -> bool:
        """Return whether runs.json has this process."""
        return holder_of(self._folder) == self._me

    def _release(self, *, keep_local: bool = False) -> None:
        """Remove runs.json, and unless it is the only copy, the local store."""
        if self._is_mine():
            (self._folder / HOLDER).unlink(missing_ok=True)
        if self._local is not None and keep_local:
            self._local.keep()
        elif self._local is not None:
            self._local.remove()


def holder_of(folder: Path) -> dict[str, str] | None:
    """Return the process that runs the study, {process, job}; None if there is none."""
    try:
        holder: Any = json.loads((folder / HOLDER).read_text())
    except (OSError, ValueError):
        return None
    return holder if isinstance(holder, dict) else None


def _touched(folder: Path) -> int:
    """Return the time of the last touch of runs.json in ns since 1970; 0 if there is none."""
    os.listdir(folder)  # refreshes the attribute cache of network file systems
    with contextlib.suppress(OSError):
        return (folder / HOLDER).stat().st_mtime_ns
    return 0


def _named(holder: dict[str, str]) -> str:
    """Return the process in words, for messages."""
    host, _, rest = str(holder.get("process", "")).partition(":")
    job = f"job {holder['job']}, " if holder.get("job") else ""
    return f"{job}process {rest.partition(':')[0]} on {host}"


def request(folder: Path, action: str) -> None:
    """Write a request for the process that runs the study. Raises `ConflictError` if there is
    none."""
    if holder_of(folder) is None:
        raise ConflictError(
            f"no process is running the study in {folder}, so {action!r} would have no effect",
            remedy="remove a waiting job with `scancel`; a job that has ended continues when it is submitted again",
        )
    (folder / f"{WISH}{action}").touch(mode=0o600)


@contextlib.contextmanager
def opened_copy(folder: Path) -> Iterator[SqlStore]:
    """Open the last copy of the store for reading. It is first copied to the local disk. Raises
    `NotFoundError` if there is none yet."""
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
