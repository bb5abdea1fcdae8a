"""Ends the remaining processes of a Ray cluster whose starter was killed. `python -S -E watchdog.py
FOLDER` waits until its standard input closes.

Ray's daemons end with the process that started them, but the daemons' agents do not. They rename
themselves, so neither command line nor environment shows their cluster, but their open log files in
the cluster's folder do. Programs that only joined the cluster are not ended; they detect the loss
of the head.
"""

import os
import shutil
import signal
import sys
import time

GRACE_S = 5.0
"""longest wait after each signal, seconds"""


def holders(folder: str) -> list[int]:
    """Numbers of Ray's processes of this cluster: those with the folder inside an argument, as
    `--temp-dir=FOLDER`, or named `ray::...` with an open file in it. Processes that start or remove
    Ray, including srun, have the folder as a separate argument and do not match."""
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
        except OSError:  # it has ended, or is another user's
            continue
        words = [os.fsdecode(word) for word in command.split(b"\0")]
        is_named = any(f"{folder}/" in word or word.endswith(f"={folder}") for word in words)
        if is_named or any(link.startswith(f"{folder}/") for link in links):
            found.append(int(name))
    return found


def kill_all(folder: str) -> None:
    """Sends SIGKILL to all processes of the cluster; bounded in time."""
    end_all(folder, (signal.SIGKILL,))


def end_all(
    folder: str, ladder: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGKILL)
) -> None:
    """Sends these signals one after another to all processes of the cluster; bounded in time."""
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
