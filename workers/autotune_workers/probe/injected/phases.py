"""What the thread that trains does, and what that costs it: for each phase of a step the time, the
processor time, and the time that it waited for a processor.

    data, forward, backward, optimizer, evaluation, checkpoint    from the hooks of `training`
    collective                                                    of the native trainer alone, which knows when it waits for others
    rest                                                          between them

Time in a phase that is inside another one belongs to the inner one. What is neither processor time
nor waiting for a processor was spent blocked: in a collective, on a disk, in a sleep, or stopped
from outside.

    delay    /proc/thread-self/schedstat (the kernel's sched-stats): nanoseconds on a run queue; 0 where the kernel does not count them
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

NAMES = (
    "rest",
    "data",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "checkpoint",
    "collective",
)
REST, DATA, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, COLLECTIVE = range(len(NAMES))


class Phases:
    """The phases of the thread that trains, since the last `take`."""

    def __init__(self) -> None:
        self.thread = 0
        """the one that trains; 0: not known yet"""
        self.stack = [REST]
        self.left = REST
        """the phase that ended last"""
        self.on_gap_end: Any = None
        """called with the phase that begins after a gap behind a backward pass"""
        self._sums = [[0.0, 0.0, 0.0] for _ in NAMES]
        self._file = -1
        self._at = (0.0, 0.0, 0.0)

    def begin(self) -> None:
        """This thread is the one that trains."""
        self.thread = threading.get_ident()
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._at = self._now()

    def close(self) -> None:
        """No thread trains any more."""
        self.thread = 0
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def enter(self, phase: int) -> None:
        """A phase begins."""
        if threading.get_ident() == self.thread:
            self._count()
            if self.left == BACKWARD and self.on_gap_end is not None and len(self.stack) == 1:
                self.on_gap_end(phase)
            self.stack.append(phase)

    def leave(self, phase: int) -> None:
        """It ends, and whatever began in it and raised."""
        if threading.get_ident() == self.thread and phase in self.stack:
            self._count()
            while self.stack.pop() != phase:
                pass
            self.left = phase

    def take(self) -> dict[str, list[float]]:
        """By name of a phase: seconds, of them on a processor, of them waiting for one; phases that
        did not occur are left out."""
        if threading.get_ident() != self.thread:
            return {}
        self._count()
        found = {
            NAMES[at]: [round(max(0.0, value), 6) for value in sums]
            for at, sums in enumerate(self._sums)
            if sums[0] > 0
        }
        self._sums = [[0.0, 0.0, 0.0] for _ in NAMES]
        return found

    def _count(self) -> None:
        before, self._at = self._at, self._now()
        sums = self._sums[self.stack[-1]]
        for at in range(3):
            sums[at] += self._at[at] - before[at]

    def _now(self) -> tuple[float, float, float]:
        delay_s = self._at[2]
        if self._file >= 0:
            try:
                delay_s = int(os.pread(self._file, 96, 0).split()[1]) * 1e-9
            except (
                OSError,
                ValueError,
                IndexError,
            ):
                # the program closed it, and may have opened another file there
                self._file = -1
        return (time.monotonic(), time.thread_time(), delay_s)


class Phase:
    """A phase for the length of a block."""

    __slots__ = ("_phase", "_phases")

    def __init__(self, phases: Phases, phase: int) -> None:
        self._phases, self._phase = phases, phase

    def __enter__(self) -> None:
        self._phases.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        self._phases.leave(self._phase)


def time_function(module: Any, name: str, phase: int, phases: Callable[[], Phases | None]) -> None:
    """Counts the time of the module's function as time of the phase. `phases`: the phases of this
    process, which are new after a fork; None before the process trains."""
    run = getattr(module, name, None)
    if run is None:
        return

    @functools.wraps(run)
    def timed(*args: Any, **kwargs: Any) -> Any:
        now = phases()
        with contextlib.nullcontext() if now is None else Phase(now, phase):
            return run(*args, **kwargs)

    setattr(module, name, timed)
