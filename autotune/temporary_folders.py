"""Temporary folders that are cleaned up even if their process is killed: creating a folder first
removes abandoned ones of the same kind.

    autotune-KIND-XXXXXXXX/    in the system's folder for temporary files
        .owner                 contains the hostname; locked while the process that created the folder lives, because the kernel releases locks of dead processes

Forked children share the lock until they exec. Folders of other machines are not removed, because
their locks may be invisible on a shared file system. Imports the standard library only, because this
file is copied to nodes without autotune.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

LOCK = ".owner"
YOUNG_S = 60.0
"""age up to which an unlocked folder is not removed, because its process may be about to lock it,
seconds"""


@final
class TemporaryFolder:
    """A new folder that only this user can access, locked while this process lives. As a context
    manager, it returns the path, and removes the folder at the end."""

    def __init__(self, kind: str, *, removes_abandoned: bool = True) -> None:
        """Raises `OSError` if the folder cannot be created. `removes_abandoned`: first remove
        abandoned folders of this kind."""
        if removes_abandoned:
            remove_abandoned(kind)
        self.path = Path(tempfile.mkdtemp(prefix=f"autotune-{kind}-"))
        self._lock = hold(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep(self) -> None:
        """Exclude the folder from automatic removal, so that it remains for the user if this process
        ends without removing it."""
        (self.path / LOCK).unlink(missing_ok=True)


def hold(folder: Path) -> int | None:
    """Lock a new folder until this process ends or the returned descriptor is closed. Raises
    `OSError`."""
    lock = _locked(folder)
    (folder / LOCK).write_text(os.uname().nodename)
    return lock


def remove_abandoned(kind: str) -> None:
    """Remove this user's folders of a kind whose process has ended."""
    for folder in abandoned(kind):
        shutil.rmtree(folder, ignore_errors=True)


def abandoned(kind: str, is_used: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """Yield this user's folders of a kind whose process has ended, each locked until the next one.
    Folders younger than `YOUNG_S` are skipped unless `is_used` returns True for them."""
    for folder in Path(tempfile.gettempdir()).glob(f"autotune-{kind}-*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid() or not _is_of_this_machine(folder):
                continue
            is_young = time.time() - (folder / LOCK).lstat().st_mtime <= YOUNG_S
            if (is_young and not is_used(folder)) or (lock := _locked(folder)) is None:
                continue
            try:
                yield folder
            finally:
                os.close(lock)


def _is_of_this_machine(folder: Path) -> bool:
    return (folder / LOCK).read_text(errors="replace") == os.uname().nodename


def _locked(folder: Path) -> int | None:
    """Lock a folder and return the descriptor; None if another process holds the lock."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
