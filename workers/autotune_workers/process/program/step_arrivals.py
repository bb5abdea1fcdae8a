"""Step times from the arrival of step lines, for programs that log no time. No clock, no I/O.

    time of a step = (arrival of the last of the waiting lines - arrival of the last line that was counted before) / steps between the two

Steps between two lines are the difference of their step numbers, or the count of lines where they have none. The first line starts the clock. Lines that come
within `RESOLUTION_S` were written at once (a buffer was flushed, or a reader was late): each ends a step, and all have the same time. Where they come so soon
after the last one that nothing can be told, they wait for the next ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from autotune.trainers.logs.step_metrics import StepMetrics

RESOLUTION_S = 1e-3
"""of an arrival: the time for a line to get through a pipe to a reader that has to wake up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A line that ends a step."""

    number: int | None
    """of the step, where the line has one"""
    arrived_s: float
    """when it came"""
    said: StepMetrics
    """what the log says of the step"""


@final
class StepArrivals:
    """The step lines of one attempt."""

    def __init__(self) -> None:
        self._first_s = 0.0
        """when the first line came"""
        self._counted: StepLine | None = None
        """the last line before those that wait"""
        self._waiting: list[StepLine] = []
        self.at_once = 0
        """lines that came at once with the first, itself among them"""

    def add(self, line: StepLine) -> bool:
        """Whether it ends a step whose time `take` tells, now or later. Where lines are numbered, others do not count."""
        last = self._waiting[-1] if self._waiting else self._counted
        if last is None or (line.number is not None and last.number is None):
            self._first_s, self._counted, self.at_once = line.arrived_s, line, 1
            self._waiting.clear()
            return False
        if last.number is not None and (line.number is None or line.number <= last.number):
            return False
        if not self._waiting and line.arrived_s - self._first_s < RESOLUTION_S:  # at once with the first
            self._counted = line
            self.at_once += 1
            return False
        self._waiting.append(line)
        return True

    def is_later(self, arrived_s: float) -> bool:
        """Whether a line of this time came after those that wait rather than at once with them."""
        return bool(self._waiting) and arrived_s - self._waiting[0].arrived_s >= RESOLUTION_S

    def take(self) -> tuple[float, list[StepLine]]:
        """The lines that wait, and the seconds of the step that each of them ends; no lines where that cannot be told yet."""
        lines, before = self._waiting, self._counted
        if not lines or before is None or (elapsed_s := lines[-1].arrived_s - before.arrived_s) < RESOLUTION_S:
            return 0.0, []
        numbered = lines[-1].number is not None and before.number is not None
        steps = lines[-1].number - before.number if numbered else len(lines)  # type: ignore[operator]
        self._waiting, self._counted = [], lines[-1]
        return elapsed_s / steps, lines

    def forget(self) -> StepLine | None:
        """The log tells times after all: no line waits any more. The last of them."""
        last = self._waiting[-1] if self._waiting else None
        self._waiting.clear()
        return last
