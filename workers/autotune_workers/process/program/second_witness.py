"""Compares the log with the probe: which observed step a log line belongs to, and whether both show
the same pace. No clock, no I/O.

    index     a line that arrives after the end of step i and before that of step i+1 belongs to step i
    pace      seconds per step: by the probe's steps between the first and the last line, and by the log's times and count of steps there

Normally both count the same steps. A log that counts micro-batches has more of them; one that
prints every tenth step has fewer, unless it numbers them.
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
"""largest relative difference that counts as agreement"""
NEAR = 64
"""number of last log lines that are searched for metrics of an observed step"""
LEAST = 3
"""smallest number of steps of each that are compared"""


@final
class SecondWitness:
    """Collects steps from the probe and the log of one attempt."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._times_s: list[float] = []
        self._logged: list[LoggedStep] = []
        self._logged_metrics: list[tuple[float, StepMetrics]] = []

    def log(self, step: LoggedStep) -> None:
        """Adds a step from the log."""
        self._logged.append(step)

    def hear(self, metrics: StepMetrics, arrived_s: float) -> None:
        """Adds the loss or gradient norm of a log line."""
        self._logged_metrics.append((arrived_s, metrics))

    def seen(self, step: SeenStep) -> LoggedStep:
        """Adds a step from the probe. Returns it with the loss and gradient norm logged so far."""
        self._ends_s.append(step.at_s)
        self._times_s.append(step.time_s)
        near = [
            metrics
            for at_s, metrics in islice(reversed(self._logged_metrics), NEAR)
            if at_s >= step.at_s
        ]
        return LoggedStep(
            time_s=max(step.time_s, 1e-9),
            loss=next((metrics.loss for metrics in near if metrics.loss is not None), None),
            grad_norm=next(
                (metrics.grad_norm for metrics in near if metrics.grad_norm is not None), None
            ),
            skipped=step.skipped,
            time_from="probe",
            resolution_s=0.0,
            arrived_s=step.at_s,
        )

    def said_of_steps(self) -> Iterator[tuple[int, StepMetrics]]:
        """Yields (index of an observed step, all metrics logged for it)."""
        metrics_by_step: dict[int, StepMetrics] = {}
        for arrived_s, metrics in self._logged_metrics:
            index = bisect_right(self._ends_s, arrived_s) - 1
            if index >= 0:
                before = metrics_by_step.get(index, StepMetrics())
                metrics_by_step[index] = StepMetrics(
                    loss=before.loss if metrics.loss is None else metrics.loss,
                    grad_norm=before.grad_norm if metrics.grad_norm is None else metrics.grad_norm,
                )
        yield from metrics_by_step.items()

    def difference(self) -> str:
        """How the log differs from the probe, as a message; empty if they agree, or too few steps
        are known."""
        if len(self._logged) < LEAST or len(self._ends_s) < LEAST:
            return ""
        first, last = self._logged[0], self._logged[-1]
        begin, end = (
            bisect_left(self._ends_s, first.arrived_s),
            bisect_right(self._ends_s, last.arrived_s),
        )
        observed_steps = end - begin
        numbered = (
            first.number is not None and last.number is not None and last.number > first.number
        )
        logged_steps = last.number - first.number if numbered else len(self._logged) - 1  # type: ignore[operator]
        if (
            observed_steps >= LEAST
            and numbered
            and abs(logged_steps - observed_steps) > max(1.0, TOLERANCE * observed_steps)
        ):
            return f"the log counts {logged_steps} steps, but the probe observed {observed_steps} optimizer steps"
        if (
            first.time_from == "arrival"
            and not numbered
            and abs(logged_steps - observed_steps) > max(1.0, TOLERANCE * observed_steps)
        ):
            return f"the log has {logged_steps} step lines, but the probe observed {observed_steps} optimizer steps"
        logged_s, observed_s = (
            median(step.time_s for step in self._logged[1:]),
            median(self._times_s[1:]),
        )
        if first.time_from != "arrival" and abs(logged_s - observed_s) > TOLERANCE * observed_s:
            return f"the log says {format_duration(logged_s)} per step, but the probe observed {format_duration(observed_s)} per optimizer step"
        return ""
