"""Measures the phases of a step in the training thread: for each the elapsed time, the processor
time, and the time spent waiting for a processor.

    data, forward, backward, optimizer, evaluation, checkpoint    from the hooks of `training`
    collective                                                    of the native trainer only, which measures its waits for other ranks
    rest                                                          between them

Time in a nested phase counts for the inner one. Time that is neither processor time nor waiting for
a processor was spent blocked: in a collective, on a disk, sleeping, or stopped from outside.

    delay    /proc/thread-self/schedstat (the kernel's sched-stats): nanoseconds on a run queue; 0 if the kernel does not count them
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
    """Phases of the training thread since the last `take`."""

    def __init__(self) -> None:
        self.thread = 0
        """identifier of the training thread; 0 if unknown"""
        self.stack = [REST]
        self.left = REST
        """the last phase that ended"""
        self.on_gap_end: Any = None
        """called with the phase that begins after a gap following a backward pass"""
        self._sums = [[0.0, 0.0, 0.0] for _ in NAMES]
        self._file = -1
        self._at = (0.0, 0.0, 0.0)

    def begin(self) -> None:
        """Starts measuring the current thread as the training thread."""
        self.thread = threading.get_ident()
        with contextlib.suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._at = self._now()

    def close(self) -> None:
        """Stops measuring."""
        self.thread = 0
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def enter(self, phase: int) -> None:
        """Begins a phase."""
        if threading.get_ident() == self.thread:
            self._count()
            if self.left == BACKWARD and self.on_gap_end is not None and len(self.stack) == 1:
                self.on_gap_end(phase)
            self.stack.append(phase)

    def leave(self, phase: int) -> None:
        """Ends the phase, and nested phases that ended by an exception."""
        if threading.get_ident() == self.thread and phase in self.stack:
            self._count()
            while self.stack.pop() != phase:
                pass
            self.left = phase

    def take(self) -> dict[str, list[float]]:
        """Returns and resets the sums: by phase name [elapsed seconds, processor seconds, seconds
        waiting for a processor], without phases that did not occur; empty in other threads."""
        if threading.get_ident() != self.thread:
            return {}
        self._count()
        sums_by_name = {
            NAMES[index]: [round(max(0.0, value), 6) for value in sums]
            for index, sums in enumerate(self._sums)
            if sums[0] > 0
        }
        self._sums = [[0.0, 0.0, 0.0] for _ in NAMES]
        return sums_by_name

    def _count(self) -> None:
        before, self._at = self._at, self._now()
        sums = self._sums[self.stack[-1]]
        for index in range(3):
            sums[index] += self._at[index] - before[index]

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
                # the program closed the descriptor, and may have reused it
                self._file = -1
        return (time.monotonic(), time.thread_time(), delay_s)


class Phase:
    """Context manager for a phase."""

    __slots__ = ("_phase", "_phases")

    def __init__(self, phases: Phases, phase: int) -> None:
        self._phases, self._phase = phases, phase

    def __enter__(self) -> None:
        self._phases.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        self._phases.leave(self._phase)


def time_function(module: Any, name: str, phase: int, phases: Callable[[], Phases | None]) -> None:
    """Wraps the module's function so that its time counts for the phase. `phases`: returns the
    phases of this process, which are new after a fork; None before the process trains."""
    run = getattr(module, name, None)
    if run is None:
        return

    @functools.wraps(run)
    def timed(*args: Any, **kwargs: Any) -> Any:
        current = phases()
        with contextlib.nullcontext() if current is None else Phase(current, phase):
            return run(*args, **kwargs)

    setattr(module, name, timed)
