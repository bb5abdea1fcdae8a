"""A lock for measuring on this machine: trials of several processes that share its GPUs or CPUs run
one after another, so that they do not disturb each other.

    device    a resource on which trials disturb each other: each GPU by its name in CUDA_VISIBLE_DEVICES, and the CPU
    turn      locks on all devices of a runner. A runner on CPU ranks locks the CPU exclusively; runners on different GPUs share it

Each device has two files that are locked with flock: `turn` while trials are measured, and `next`
while a process waits for its turn. A process that wants another turn has to lock `next` first, so
it cannot get two turns while another process waits. Among several waiting processes the order is
not defined. All processes lock devices in the same order, which prevents deadlocks. The system
releases the locks of a process that ends.

The files are in the user's data folder and are named after the running system, because several
machines may share a home folder. So other programs are not locked out, nor studies with another
data folder: another user's, or one inside a container. If the files cannot be opened or locked, a
warning is logged and trials run at once. A GPU that two processes name differently, by number and
by UUID, counts as two.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from autotune.settings import own_folder

LOG = logging.getLogger(__name__)
CPU = "cpu"
SYSTEM = Path("/proc/sys/kernel/random/boot_id")
"""a text that is the same for all processes of a running system, in containers too"""


@final
class MachineTurn:
    """The turn of one runner. Not thread-safe. Several in one process exclude each other like
    several processes."""

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        """`gpus`: GPUs of the ranks, as CUDA_VISIBLE_DEVICES names them; empty means the CPU."""
        self._names = [*((name, False) for name in sorted(gpus)), (CPU, bool(gpus))]
        self._locks: list[_DeviceLock] = []
        self._warned = False

    @property
    def is_held(self) -> bool:
        """Whether this runner has its turn."""
        return bool(self._locks) and all(lock.is_held for lock in self._locks)

    @property
    def is_wanted(self) -> bool:
        """Whether another process waits for one of these devices."""
        return any(lock.is_wanted() for lock in self._locks)

    def take(self, study: str) -> str:
        """Takes the turn for a trial of this study, without waiting. Returns an empty string if the
        turn is held, otherwise who has it, as words for a message; then call again, or `give_back`
        to stop waiting."""
        try:
            self._locks = self._locks or [
                _DeviceLock(name, is_shared) for name, is_shared in self._names
            ]
            for lock in self._locks:
                if not lock.take(study):
                    return lock.holder()
        except OSError as error:
            self.give_back()
            if not self._warned:
                LOG.warning(
                    "other studies' trials may run on this machine at the same time and disturb the measurements: %s",
                    error,
                )
            self._warned = True
        return ""

    def give_back(self) -> None:
        """Ends the turn, or the wait for it. Idempotent."""
        for lock in self._locks:
            lock.close()
        self._locks = []


@final
class _DeviceLock:
    """The two lock files of a device. Methods raise `OSError` if these cannot be opened or
    locked."""

    def __init__(self, name: str, is_shared: bool) -> None:
        """`is_shared`: whether other runners with shared locks may hold the device at the same
        time."""
        self._name, self._is_shared = name, is_shared
        self.is_held = self._is_next = False
        stem = f"{_running_system()}-{re.sub(r'[^A-Za-z0-9]', '-', name)}"
        folder = own_folder("turns")
        self._turn = _open(folder / f"{stem}.turn")
        try:
            self._next = _open(folder / f"{stem}.next")
        except OSError:
            os.close(self._turn)
            raise

    def take(self, study: str) -> bool:
        """Tries to lock the device. Returns whether it is held."""
        if self.is_held:
            return True
        if not self._is_next:
            if not _lock(self._next, fcntl.LOCK_EX):
                return False
            self._is_next = True
            _write_holder(self._next, study)
        if not _lock(self._turn, fcntl.LOCK_SH if self._is_shared else fcntl.LOCK_EX):
            return False
        self.is_held = True
        _write_holder(self._turn, study)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        self._is_next = False
        return True

    def is_wanted(self) -> bool:
        """Whether a process waits for the device. Tested with a shared lock, so that two processes
        that test at the same time do not take each other for a waiting one."""
        if not _lock(self._next, fcntl.LOCK_SH):
            return True
        fcntl.flock(self._next, fcntl.LOCK_UN)
        return False

    def holder(self) -> str:
        """Who has the device or is next, as words for a message."""
        device = f"{'the CPU' if self._name == CPU else f'GPU {self._name}'} of this machine"
        if not self._is_next and _lock(self._turn, fcntl.LOCK_SH):
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            return f"{_read_holder(self._next)} is next on {device}"
        return f"{_read_holder(self._turn)} measures on {device}"

    def close(self) -> None:
        """Releases the locks and closes the files."""
        os.close(self._turn)
        os.close(self._next)


def _open(path: Path) -> int:
    """A descriptor to lock, not inherited by programs. Another user's file is opened read-only,
    which suffices."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _lock(descriptor: int, kind: int) -> bool:
    """Locks without waiting. Returns whether the lock was free. Raises `OSError` if the file system
    has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(descriptor: int, study: str) -> None:
    """Writes into the file which study has locked it."""
    with suppress(OSError):  # another user's file, or a full disk: the lock works without the text
        text = json.dumps({"study": study, "process": os.getpid()})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _read_holder(descriptor: int) -> str:
    """Which study has locked the file, as words for a message."""
    try:
        holder = json.loads(os.pread(descriptor, 1 << 12, 0))
        return f"study {holder['study']} (process {holder['process']})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another study"


def _running_system() -> str:
    """An identifier of this machine until it reboots, the same for all its processes."""
    try:
        identity = SYSTEM.read_text().strip()
    except OSError:
        identity = socket.gethostname()
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
