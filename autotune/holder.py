"""Who holds a lease: a process, named by host, process id and start time, so that another process on the host can tell whether it lives.

    host:pid:start        start is the kernel's start time of the process in clock ticks since boot; 0 where it cannot be read

A process id alone is not enough: ids are given again. Where the start time is unknown, or the holder is on another host, it counts as alive, and
only the end of its lease says otherwise.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """The name under which this process takes leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid()) or 0}"


def is_gone(holder: str) -> bool:
    """Whether `holder` is a process of this host that surely lives no more."""
    host, _, rest = holder.rpartition(":")[0].partition(":")
    start = holder.rpartition(":")[2]
    if host != socket.gethostname() or not rest.isdigit() or not start.isdigit() or start == "0":
        return False
    return _start_time(int(rest)) != int(start) if Path("/proc/self/stat").exists() else False


def _start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; None when there is no such process, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    return None if fields[0] in ("Z", "X") else int(fields[19])
