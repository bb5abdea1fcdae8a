"""Who holds a lease: a process, named so that another process beside it can tell whether it lives, and nobody else thinks to know.

    host:pid:start:place  start is the kernel's start time of the process in clock ticks since boot; 0 where it cannot be read
                          place is one boot of one kernel and one namespace of process ids; 0 where it cannot be read

A process id alone is not enough: ids are given again. Nor is a host's name: two containers or machines may have the same, and ids of one mean nothing
in the other. Where start or place is unknown, or the holder is elsewhere, it counts as alive, and only the end of its lease says otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path


def this_process() -> str:
    """The name under which this process takes leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid()) or 0}:{_place()}"


def is_beside(holder: str) -> bool:
    """Whether `holder` is a process, living or dead, that this one could see, as far as can be told."""
    host, place = holder.partition(":")[0], holder.rpartition(":")[2]
    return holder.count(":") == 3 and host == socket.gethostname() and place == _place()


def is_gone(holder: str) -> bool:
    """Whether `holder` is a process beside this one that surely lives no more."""
    if not is_beside(holder):
        return False
    _, pid, start, place = holder.split(":")
    if not pid.isdigit() or not start.isdigit() or "0" in (start, place):
        return False
    return _start_time(int(pid)) != int(start) if Path("/proc/self/stat").exists() else False


@functools.cache
def _place() -> str:
    """The same for all processes that see each other's ids, and for no others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ids = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "0"
    return hashlib.sha256(f"{boot} {ids}".encode()).hexdigest()[:12]


def _start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; None when there is no such process, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])
