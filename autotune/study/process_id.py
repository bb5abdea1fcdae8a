"""The id of a process that holds a lease. Another process on the same machine can tell from it
whether the holder is alive.

    host:pid:start:place   start   kernel's start time of the process, clock ticks since boot; 0 where it cannot be read
                           place   digest of the boot id and the namespace of process ids; 0 where they cannot be read

A process id alone is not enough: the kernel reuses ids. A host name is not enough either: two
containers may share one, and the ids of one mean nothing in the other. A holder with an unknown
start or place, or in another place, counts as alive until its lease runs out.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path


def this_process() -> str:
    """The id under which this process takes leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid()) or 0}:{_place()}"


def is_beside(process_id: str) -> bool:
    """Whether the process, alive or dead, is of this machine and namespace, as far as can be
    told."""
    host, place = process_id.partition(":")[0], process_id.rpartition(":")[2]
    return process_id.count(":") == 3 and host == socket.gethostname() and place == _place()


def is_gone(process_id: str) -> bool:
    """Whether the process is of this machine and namespace and has surely ended."""
    if not is_beside(process_id):
        return False
    _, pid, start, place = process_id.split(":")
    if not pid.isdigit() or not start.isdigit() or "0" in (start, place):
        return False
    return _start_time(int(pid)) != int(start) if Path("/proc/self/stat").exists() else False


@functools.cache
def _place() -> str:
    """Equal for processes that see each other's ids, and different for all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ids = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "0"
    return hashlib.sha256(f"{boot} {ids}".encode()).hexdigest()[:12]


def _start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; None when there is no such process, or
    it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])
