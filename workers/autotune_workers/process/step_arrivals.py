"""Step times from the arrival of step lines, for programs that log no time. No clock, no I/O.

    time of a step = (arrival of a line - arrival of the last line that ended a step) / steps between them

Steps between two lines are the difference of their step numbers, or one where they have none. The first line starts the clock. Lines that come
within `RESOLUTION_S` were written at once (a buffer was flushed, or a reader was late): their steps count toward the next line.
"""

from __future__ import annotations

from typing import final

RESOLUTION_S = 1e-3
"""of an arrival: the time for a line to get through a pipe to a reader that has to wake up"""


@final
class StepArrivals:
    """The step lines of one attempt."""

    def __init__(self) -> None:
        self._arrived_s: float | None = None
        self._number: int | None = None
        self._unnumbered = 0

    def time_of(self, step: int | None, now_s: float) -> float | None:
        """Seconds of a step that ends with this line; None if it cannot be told yet. Where lines are numbered, others do not count."""
        if step is None and self._number is not None:
            return None
        if self._arrived_s is None or (step is not None and self._number is None):
            self._arrived_s, self._number = now_s, step
            return None
        if step is None:
            self._unnumbered += 1
        steps = self._unnumbered if step is None or self._number is None else step - self._number
        elapsed_s = now_s - self._arrived_s
        if steps <= 0 or elapsed_s < RESOLUTION_S:
            return None
        self._arrived_s, self._number, self._unnumbered = now_s, step, 0
        return elapsed_s / steps
