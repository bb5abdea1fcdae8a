"""The id of a process that holds a lease. Another process on the same machine can tell from it
whether the holder is alive.

    host:pid:start:place   start   start time of the process, clock ticks since boot; 0 if it cannot be read
                           place   digest of the boot id and the PID namespace; 0 if they cannot be read

A PID alone is not enough, because the kernel reuses them. Neither is a host name, because two
containers may have the same one but different PID namespaces. A holder with an unknown start or
place, or in another place, counts as alive until its lease expires.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path


def this_process() -> str:
    """The id with which this process claims leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid()) or 0}:{_place()}"


def is_beside(process_id: str) -> bool:
    """Whether the process, alive or dead, is known to belong to this machine and PID namespace."""
    host, place = process_id.partition(":")[0], process_id.rpartition(":")[2]
    return process_id.count(":") == 3 and host == socket.gethostname() and place == _place()


def is_gone(process_id: str) -> bool:
    """Whether the process belongs to this machine and PID namespace and has certainly ended."""
    if not is_beside(process_id):
        return False
    _, pid, start, place = process_id.split(":")
    if not pid.isdigit() or not start.isdigit() or "0" in (start, place):
        return False
    return _start_time(int(pid)) != int(start) if Path("/proc/self/stat").exists() else False


@functools.cache
def _place() -> str:
    """Digest of boot id and PID namespace: equal for processes that see each other's PIDs, different
    for all others; "0" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ids = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "0"
    return hashlib.sha256(f"{boot} {ids}".encode()).hexdigest()[:12]


def _start_time(pid: int) -> int | None:
    """Start time of the process in clock ticks since boot; None if it does not exist or is a
    zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])
