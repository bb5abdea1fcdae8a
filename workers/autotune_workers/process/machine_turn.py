"""The turn to measure on this machine: trials of several processes that share its GPUs or its CPUs
run one after another, not against each other.

    device    what trials disturb each other on: each GPU by its name in CUDA_VISIBLE_DEVICES, and the CPU
    turn      all devices of a runner, locked. A runner on CPU ranks has the CPU alone; runners on different GPUs share it

Each device has two files that are locked with flock: `turn` while trials are measured, and `next`
while a process waits for that. Whoever wants another turn has to lock `next` first, so that nobody
has two turns before a process that waits has one; of several processes that wait, any may be next.
Devices are locked in one order by everybody, which rules out a deadlock. The system drops the locks
of a process that dies.

The files lie in the user's data folder and are named after the running system, because a home
folder may be shared by several machines. Not guarded are therefore programs other than autotune,
and studies with another data folder: of another user, or in a container with a folder of its own.
Where the files cannot be opened or locked, a warning says so and trials run at once. One GPU that
two processes name differently, by number and by UUID, counts as two.
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
"""its text is the same for all processes of a running system, in containers too"""


@final
class MachineTurn:
    """The turn of one runner. Not thread-safe; several in one process count as several
    processes."""

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        """`gpus`: that ranks run on, as CUDA_VISIBLE_DEVICES names them; empty means the CPU."""
        self._names = [*((name, False) for name in sorted(gpus)), (CPU, bool(gpus))]
        self._locks: list[_DeviceLock] = []
        self._warned = False

    @property
    def is_held(self) -> bool:
        """Whether it is this runner's turn."""
        return bool(self._locks) and all(lock.is_held for lock in self._locks)

    @property
    def is_wanted(self) -> bool:
        """Whether another process waits for a device of this turn."""
        return any(lock.is_wanted() for lock in self._locks)

    def take(self, study: str) -> str:
        """Takes the turn for a trial of this study. Empty when it is held now, else who has it, in
        words: then ask again until `give_back`."""
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
    """The two files of a device. Raises `OSError` where they cannot be opened or locked."""

    def __init__(self, name: str, is_shared: bool) -> None:
        """`is_shared`: whether others that share the device may hold it at the same time."""
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
        """Whether the device is held now."""
        if self.is_held:
            return True
        if not self._is_next:
            if not _lock(self._next, fcntl.LOCK_EX):
                return False
            self._is_next = True
            _write(self._next, study)
        if not _lock(self._turn, fcntl.LOCK_SH if self._is_shared else fcntl.LOCK_EX):
            return False
        self.is_held = True
        _write(self._turn, study)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        self._is_next = False
        return True

    def is_wanted(self) -> bool:
        """Whether a process waits for it. Two processes that ask at the same time do not take each
        other for one that waits: they lock for sharing."""
        if not _lock(self._next, fcntl.LOCK_SH):
            return True
        fcntl.flock(self._next, fcntl.LOCK_UN)
        return False

    def holder(self) -> str:
        """Who has the device, or will have it next, in words."""
        device = f"{'the CPU' if self._name == CPU else f'GPU {self._name}'} of this machine"
        if not self._is_next and _lock(self._turn, fcntl.LOCK_SH):
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            return f"{_read(self._next)} is next on {device}"
        return f"{_read(self._turn)} measures on {device}"

    def close(self) -> None:
        """Drops the locks."""
        os.close(self._turn)
        os.close(self._next)


def _open(path: Path) -> int:
    """A descriptor to lock, not inherited by programs. A file of another user is opened for
    reading, which is enough."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _lock(descriptor: int, kind: int) -> bool:
    """Whether the lock was free. Raises `OSError` where the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, study: str) -> None:
    """Notes in the file who has locked it."""
    with suppress(OSError):  # a file of another user, or a full disk: the lock itself needs neither
        text = json.dumps({"study": study, "process": os.getpid()})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _read(descriptor: int) -> str:
    """Who has locked the file, in words."""
    try:
        noted = json.loads(os.pread(descriptor, 1 << 12, 0))
        return f"study {noted['study']} (process {noted['process']})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another study"


def _running_system() -> str:
    """Equal for all processes of this machine until it is started again."""
    try:
        identity = SYSTEM.read_text().strip()
    except OSError:
        identity = socket.gethostname()
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
