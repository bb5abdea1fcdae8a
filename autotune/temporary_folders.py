"""Temporary folders that do not stay behind when their process is killed: whoever makes the next
one of a kind removes them.

    autotune-KIND-XXXXXXXX/    in the folder of the system for temporary files
        .owner                 the name of the machine, locked as long as the process that made the folder lives: the kernel gives the lock back whatever ends it

A process that was forked without a new program holds the lock, too. Locks of other machines may not
be seen, so their folders are left alone. Imports the standard library only, as nodes without
autotune get this file.
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
"""age up to which a folder without an owner may be one that is about to be locked"""


@final
class TemporaryFolder:
    """A new folder that only this user can enter, locked as long as this process lives. As a
    context manager it gives its path, and removes it at the end."""

    def __init__(self, kind: str, *, removes_abandoned: bool = True) -> None:
        """Raises `OSError` where no folder can be made. `removes_abandoned`: first, those of this
        kind."""
        if removes_abandoned:
            remove_abandoned(kind)
        self.path = Path(tempfile.mkdtemp(prefix=f"autotune-{kind}-"))
        self._lock = hold(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def keep(self) -> None:
        """Leaves it to a person if this process ends without removing it: no other one does."""
        (self.path / LOCK).unlink(missing_ok=True)


def hold(folder: Path) -> int | None:
    """Locks a new folder as long as this process lives, or the lock that is returned is open.
    Raises `OSError`."""
    lock = _locked(folder)
    (folder / LOCK).write_text(os.uname().nodename)
    return lock


def remove_abandoned(kind: str) -> None:
    """Removes this user's folders of a kind whose process is gone."""
    for folder in abandoned(kind):
        shutil.rmtree(folder, ignore_errors=True)


def abandoned(kind: str, is_used: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """This user's folders of a kind whose process is gone, each locked until the next one is asked
    for. A young one is left out unless it `is_used`."""
    for folder in Path(tempfile.gettempdir()).glob(f"autotune-{kind}-*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid() or not _is_of_here(folder):
                continue
            is_young = time.time() - (folder / LOCK).lstat().st_mtime <= YOUNG_S
            if (is_young and not is_used(folder)) or (lock := _locked(folder)) is None:
                continue
            try:
                yield folder
            finally:
                os.close(lock)


def _is_of_here(folder: Path) -> bool:
    return (folder / LOCK).read_text(errors="replace") == os.uname().nodename


def _locked(folder: Path) -> int | None:
    """The lock of a folder; None where another process has it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
