"""The time that is left of a RayJob. No process in it is told when it began, so the limit counts
from the start of this container, whose first process tells it.

The job's own limit (`activeDeadlineSeconds`) is longer by `START_S`, in which pods are placed and
images are pulled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LIMIT = "AUTOTUNE_JOB_TIME_S"
"""variable with the limit in seconds, set by the job"""
START_S = 900.0
"""for pods to be placed and images to be pulled"""
_STARTED = 21
"""of the fields of /proc/PID/stat (proc(5)): its start, in ticks since the machine's; the first two
fields are taken off"""


def left_s(environment: Mapping[str, str] | None = None, *, of: int = 1) -> float | None:
    """Seconds, negative once they are over; None outside of such a job. `of`: the container's first
    process."""
    limit = (os.environ if environment is None else environment).get(LIMIT, "")
    if not limit.isdigit():
        return None
    ticks = int(Path(f"/proc/{of}/stat").read_text().rpartition(")")[2].split()[_STARTED - 2])
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    return int(limit) - (up_s - ticks / os.sysconf("SC_CLK_TCK"))
