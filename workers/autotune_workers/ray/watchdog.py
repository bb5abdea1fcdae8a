"""Ends what is left of a Ray cluster whose starter was killed: `python -S -E _ray_watchdog.py FOLDER` waits until its standard input closes.

Ray's daemons die with the process that started them, the agents that they started themselves do not. They rename themselves, so that
neither their command lines nor their environments tell whose they are; their log files, below the cluster's own folder, do. Programs that only joined the
cluster have such files too, and are left alone: they say for themselves that the head is gone.
"""

import os
import shutil
import signal
import sys
import time

PATIENCE_S = 5.0
"""for those that end by themselves, and again for those that were told to"""


def holders(folder: str) -> list[int]:
    """Ray's processes of this cluster: they name the folder in their command line, or are called `ray::...` and hold a file below it open."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read()
            is_rays = command.startswith(b"ray::")
            links = [os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")] if is_rays else []
        except OSError:  # gone meanwhile, or somebody else's
            continue
        if folder.encode() in command or any(link.startswith(f"{folder}/") for link in links):
            found.append(int(name))
    return found


def end_all(folder: str) -> None:
    """SIGTERM, then SIGKILL, to all of them; bounded in time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end_s = time.monotonic() + PATIENCE_S
        for pid in holders(folder):
            try:
                os.kill(pid, number)
            except OSError:
                continue
        while holders(folder) and time.monotonic() < end_s:
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.read()
    end_all(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
