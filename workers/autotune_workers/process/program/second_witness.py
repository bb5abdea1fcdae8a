"""The log beside the probe: which step of the probe a line of the log belongs to, and whether both
tell the same pace. No clock, no I/O.

    place     a line that comes after the end of step i and before that of step i+1 speaks of step i
    pace      seconds per step: of the probe by its steps between the first and the last line, of the log by its own times, and by its own count of steps there

Both count the same steps where nothing is wrong. A log that counts micro-batches has more of them,
one that prints every tenth step has fewer, unless it numbers them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import final

from autotune.spec.texts.as_text import format_duration
from autotune.trainers.logs.step_metrics import StepMetrics
from autotune_workers.process.program.log import LoggedStep
from autotune_workers.process.program.probe import SeenStep

TOLERANCE = 0.05
"""relative difference that is no difference"""
NEAR = 64
"""last lines of the log among which those of a step of the probe are looked for"""
LEAST = 3
"""steps of each that are compared"""


@final
class SecondWitness:
    """Steps of the probe, and of the log, of one attempt."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._times_s: list[float] = []
        self._logged: list[LoggedStep] = []
        self._said: list[tuple[float, StepMetrics]] = []

    def log(self, step: LoggedStep) -> None:
        """A step of the log."""
        self._logged.append(step)

    def hear(self, said: StepMetrics, arrived_s: float) -> None:
        """What a line says of a loss or a gradient norm."""
        self._said.append((arrived_s, said))

    def seen(self, step: SeenStep) -> LoggedStep:
        """A step of the probe, with what the log has said of it so far."""
        self._ends_s.append(step.at_s)
        self._times_s.append(step.time_s)
        near = [said for at_s, said in islice(reversed(self._said), NEAR) if at_s >= step.at_s]
        return LoggedStep(
            time_s=max(step.time_s, 1e-9),
            loss=next((said.loss for said in near if said.loss is not None), None),
            grad_norm=next((said.grad_norm for said in near if said.grad_norm is not None), None),
            skipped=step.skipped,
            time_from="probe",
            resolution_s=0.0,
            arrived_s=step.at_s,
        )

    def said_of_steps(self) -> Iterator[tuple[int, StepMetrics]]:
        """Steps of the probe, by their place, with all that the log says of each."""
        told: dict[int, StepMetrics] = {}
        for arrived_s, said in self._said:
            place = bisect_right(self._ends_s, arrived_s) - 1
            if place >= 0:
                before = told.get(place, StepMetrics())
                told[place] = StepMetrics(
                    loss=before.loss if said.loss is None else said.loss,
                    grad_norm=before.grad_norm if said.grad_norm is None else said.grad_norm,
                )
        yield from told.items()

    def difference(self) -> str:
        """How the log differs from the probe, in words; empty where it does not, or too little is
        known."""
        if len(self._logged) < LEAST or len(self._ends_s) < LEAST:
            return ""
        first, last = self._logged[0], self._logged[-1]
        begin, end = (
            bisect_left(self._ends_s, first.arrived_s),
            bisect_right(self._ends_s, last.arrived_s),
        )
        seen = end - begin
        numbered = (
            first.number is not None and last.number is not None and last.number > first.number
        )
        counted = last.number - first.number if numbered else len(self._logged) - 1  # type: ignore[operator]
        if seen >= LEAST and numbered and abs(counted - seen) > max(1.0, TOLERANCE * seen):
            return f"the log counts {counted} steps, but the probe observed {seen} optimizer steps"
        if (
            first.time_from == "arrival"
            and not numbered
            and abs(counted - seen) > max(1.0, TOLERANCE * seen)
        ):
            return (
                f"the log has {counted} step lines, but the probe observed {seen} optimizer steps"
            )
        said_s, seen_s = median(step.time_s for step in self._logged[1:]), median(self._times_s[1:])
        if first.time_from != "arrival" and abs(said_s - seen_s) > TOLERANCE * seen_s:
            return f"the log says {format_duration(said_s)} per step, but the probe observed {format_duration(seen_s)} per optimizer step"
        return ""
