"""Ends what is left of a Ray cluster whose starter was killed: `python -S -E watchdog.py FOLDER`
waits until its standard input closes.

Ray's daemons end with the process that started them, but the agents that the daemons started do
not. They rename themselves, so that neither command line nor environment tells which cluster they
belong to; their open log files, below the cluster's own folder, do. Programs that only joined the
cluster are left alone: they find out by themselves that the head is gone.
"""

import os
import shutil
import signal
import sys
import time

GRACE_S = 5.0
"""for processes to end by themselves, and again after SIGTERM"""


def holders(folder: str) -> list[int]:
    """Ray's processes of this cluster: they name the folder within an argument, as
    `--temp-dir=FOLDER`, or are called `ray::...` and hold a file below it open. What starts or
    removes Ray, srun too, has the folder as an argument of its own."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read()
            is_rays = command.startswith(b"ray::")
            links = (
                [os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")]
                if is_rays
                else []
            )
        except OSError:  # gone meanwhile, or somebody else's
            continue
        words = [os.fsdecode(word) for word in command.split(b"\0")]
        is_named = any(f"{folder}/" in word or word.endswith(f"={folder}") for word in words)
        if is_named or any(link.startswith(f"{folder}/") for link in links):
            found.append(int(name))
    return found


def kill_all(folder: str) -> None:
    """SIGKILL to all of them at once; bounded in time."""
    end_all(folder, (signal.SIGKILL,))


def end_all(
    folder: str, ladder: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)
) -> None:
    """These signals, one after the other, to all of them; bounded in time."""
    for number in ladder:
        end_s = time.monotonic() + GRACE_S
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
