"""The subreaper: a process between a runner and somebody's program. It starts the program, and nothing that the program starts outlives it.

Launchers such as torchrun put their ranks into sessions of their own, where no signal to the program's group reaches them. So this process
adopts every orphan below it (`PR_SET_CHILD_SUBREAPER` of prctl(2)), knows all descendants by their parents, and ends them all: when the program
has ended, when it is told to, and when its owner is gone. It imports the standard library only and starts in milliseconds.

    owner -> subreaper   one line {"argv": [...], "env": {...}, "cwd": ...}; after that any byte, or the end of the channel, means: end it
    subreaper -> owner   {"started": pid} or {"refused": "FileNotFoundError: ..."}; at last {"code": C, "peak_bytes": N, "left": N}

`code`: exit status of the program, negative for a signal. `peak_bytes`: the largest resident high-water mark of any one process below the
program, as seen when last looked at: the fullest rank. `left`: processes that even SIGKILL did not end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune_workers.process.machine import adopt_orphans, be_expendable, die_with_parent, status_bytes

GRACE_S = 3.0
"""between SIGTERM to the program's process group and SIGKILL to all that it started"""
LEFTOVERS_S = 0.5
"""for what a program that has ended leaves running"""
LOOK_S = 0.2
"""between two readings of the process table"""
GONE_S = 20.0
"""for the system to end what was killed"""


def main() -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="autotune-subreaper")
    parser.add_argument("--fd", type=int, required=True)
    owner = socket.socket(fileno=parser.parse_args().fd)
    owner.set_inheritable(False)
    adopt_orphans()
    with owner.makefile("rb", buffering=0) as lines:
        order = lines.readline()
    if order:
        _Subreaper(owner).run(json.loads(order))


class _Subreaper:
    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._peak = 0
        self._code: int | None = None

    def run(self, order: dict[str, Any]) -> None:
        """Runs the program to its end."""
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker)
        subreaper = os.getpid()
        try:
            program = subprocess.Popen(
                order["argv"],
                env=order["env"],
                cwd=order["cwd"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: _begin(subreaper),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._send({"refused": f"{type(error).__name__}: {error}"})
            return
        self._send({"started": program.pid})
        self._wait(program.pid, woken)
        self._end(program.pid, GRACE_S if self._code is None else LEFTOVERS_S)
        self._send({"code": self._code, "peak_bytes": self._peak, "left": len(self._living())})

    def _wait(self, program: int, woken: int) -> None:
        """Until the program ends by itself, or the owner wants its end or is gone."""
        while self._code is None:
            waiting: list[Any] = [self._owner, woken]
            readable, _, _ = select.select(waiting, [], [], LOOK_S)
            if woken in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            self._living()
            self._reap(program)
            if self._owner in readable:
                with contextlib.suppress(OSError):
                    self._owner.recv(64)
                return

    def _end(self, program: int, grace_s: float) -> None:
        """SIGTERM to the program's group (or to what it left behind), SIGKILL to whatever is there after `grace_s`, until nothing is."""
        began_s = time.monotonic()
        if self._code is None:
            _signal(os.killpg, program, signal.SIGTERM)
        else:
            for pid in self._living():
                _signal(os.kill, pid, signal.SIGTERM)
        while (living := self._living()) and (waited_s := time.monotonic() - began_s) < grace_s + GONE_S:
            if waited_s >= grace_s:
                for pid in living:
                    _signal(os.kill, pid, signal.SIGKILL)
            self._reap(program)
            time.sleep(0.02)
        self._reap(program)

    def _reap(self, program: int) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == program:
                    self._code = os.waitstatus_to_exitcode(ended[1])

    def _living(self) -> list[int]:
        """All living descendants; takes note of their memory."""
        living = descendants(os.getpid())
        self._peak = max([self._peak, *(status_bytes("VmHWM", pid) or 0 for pid in living)])
        return living

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the owner is gone
            self._owner.sendall(json.dumps(message).encode() + b"\n")


def _begin(subreaper: int) -> None:
    die_with_parent(subreaper)
    be_expendable()


def _signal(kill: Callable[[int, int], None], number: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(number, what)


def descendants(root: int) -> list[int]:
    """Process numbers of all descendants of `root` that are no zombies, by the parents that /proc names."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        children.setdefault(int(parent), []).append(int(entry))
        if state in ("Z", "X"):
            zombies.add(int(entry))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        found += level
    return [pid for pid in found if pid not in zombies]


if __name__ == "__main__":
    main()
