"""The log of one node of a program: lines in, steps out. No clock, no I/O.

A line with a time (or a rate) ends a step; loss, gradient norm and memory of the lines before it
belong to that step. Where lines number their steps, a number that was there already is another
rank's and is ignored. A time without a number, where steps have numbers, is another row of the same
step. A trainer that logs every few steps is measured by what it logs: each such line counts as one
step. One that logs neither times nor rates is timed by the arrival of its step lines
(`StepArrivals`); what comes first, a time or a later arrival, decides for the whole attempt.

Step times from the arrival of step lines, for programs that log no time. No clock, no I/O.

    time of a step = (arrival of the last of the waiting lines - arrival of the last line that was counted before) / steps between the two

Steps between two lines are the difference of their step numbers, or the count of lines where they
have none. The first line starts the clock. Lines that come within `RESOLUTION_S` were written at
once (a buffer was flushed, or a reader was late): each ends a step, and all have the same time.
Where they come so soon after the last one that nothing can be told, they wait for the next ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from autotune.ports import TrialRequest
from autotune.trainers.base.trainer import LineReader
from autotune.trainers.logs.formats import MICRO_BATCHES
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
        """Whether it ends a step whose time `take` tells, now or later. Where lines are numbered,
        others do not count."""
        last = self._waiting[-1] if self._waiting else self._counted
        if last is None or (line.number is not None and last.number is None):
            self._first_s, self._counted, self.at_once = line.arrived_s, line, 1
            self._waiting.clear()
            return False
        if last.number is not None and (line.number is None or line.number <= last.number):
            return False
        # at once with the first
        if not self._waiting and line.arrived_s - self._first_s < RESOLUTION_S:
            self._counted = line
            self.at_once += 1
            return False
        self._waiting.append(line)
        return True

    def is_later(self, arrived_s: float) -> bool:
        """Whether a line of this time came after those that wait rather than at once with them."""
        return bool(self._waiting) and arrived_s - self._waiting[0].arrived_s >= RESOLUTION_S

    def take(self) -> tuple[float, list[StepLine]]:
        """The lines that wait, and the seconds of the step that each of them ends; no lines where
        that cannot be told yet."""
        lines, before = self._waiting, self._counted
        if (
            not lines
            or before is None
            or (elapsed_s := lines[-1].arrived_s - before.arrived_s) < RESOLUTION_S
        ):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """A step that the log says is done."""

    time_s: float
    """time of the step"""
    loss: float | None
    """None where the log does not say it"""
    grad_norm: float | None
    """None where the log does not say it"""
    skipped: bool
    """whether the weights were left as they are"""
    time_from: str
    """log, rate or arrival; probe where it was seen from inside the program"""
    resolution_s: float
    """how exactly the time is known"""
    arrived_s: float
    """when it was told, or ended, on the node's own monotonic clock"""
    number: int | None = None
    """its number in the log, where it has one"""
    together: int = 1
    """steps that arrived at once with it, whose mean its time is"""
    tokens: float | None = None
    """that the step trained, by the rate and the time in its line; None if the log lacks one of them"""


def as_series(values: Iterable[float | None]) -> tuple[float, ...]:
    """What the log says of each step, NaN where it says nothing; empty where it never says
    anything."""
    series = tuple(math.nan if value is None else value for value in values)
    return () if all(map(math.isnan, series)) else series


@final
class ProgramLog:
    """What has been read of one log."""

    def __init__(self, request: TrialRequest, read: LineReader) -> None:
        """`read`: the trainer's reader of log lines."""
        config = request.config
        self._sequences, self._ranks = config.global_batch_size, config.world_size
        self._tokens = round(config.global_batch_size * request.workload.tokens_per_sequence)
        asked = request.trainer_options.get("counts", "unknown")
        self._accumulates = config.accumulation_steps
        self._counts = "" if asked == "unknown" else str(asked)
        """what a line counts, as the spec says, or as the form of the log tells"""
        self._parts: list[float] = []
        """times of the micro-batches of a step, where the log counts those"""
        self._said_of_parts = StepMetrics()
        """what the log says of them"""
        self._read = read
        self._held = StepMetrics()
        self._numbers: set[int] = set()
        self._arrivals = StepArrivals()
        self._tells_times: bool | None = None
        """whether it does; None: not known yet"""
        self.said = StepMetrics()
        """what the last line said, timed or not"""
        self.peak_bytes: float | None = None
        """the largest memory that it spoke of"""

    def hear(self, line: str, arrived_s: float) -> list[LoggedStep]:
        """A line; the steps of which it is clear now that they have ended."""
        metrics = self._read(line)
        self.said = metrics or StepMetrics()
        if metrics is not None and metrics.counts and not self._counts:
            self._counts = metrics.counts
        if metrics is None or (metrics.step is not None and metrics.step in self._numbers):
            return []
        if metrics.peak_memory_bytes is not None:
            self.peak_bytes = max(metrics.peak_memory_bytes, self.peak_bytes or 0.0)
        self._held = _joined(self._held, metrics)
        time_s = metrics.time_of(
            tokens_per_step=self._tokens, sequences_per_step=self._sequences, num_ranks=self._ranks
        )
        if time_s is None:
            return (
                self._arrive(metrics, arrived_s)
                if metrics.ends_step and not self._tells_times
                else []
            )
        if not 0 < time_s < math.inf or self._tells_times is False:
            return []
        self._tells_times = True
        if (last := self._arrivals.forget()) is not None:
            self._held = _joined(last.said, self._held)
        if self._numbers and self._held.step is None and self._said_of_parts.step is None:
            return []  # another row of the same step: its rate on one rank, or of validation
        source = "rate" if metrics.step_time_s is None else "log"
        ended = self._end_part(self._take_held(), time_s, source, metrics.resolution_s, arrived_s)
        tokens = metrics.tokens_of(num_ranks=self._ranks)
        return [replace(step, tokens=tokens) for step in ended] if self._per_step == 1 else ended

    @property
    def _per_step(self) -> int:
        """Lines of a step."""
        return self._accumulates if self._counts == MICRO_BATCHES else 1

    @property
    def arrived_at_once(self) -> int:
        """Steps whose lines came so soon after the first one that nothing tells how long they
        took."""
        return self._arrivals.at_once

    def pause(self) -> list[LoggedStep]:
        """No further line came at once with those before: the steps that they end."""
        time_s, lines = self._arrivals.take()
        if not lines:
            return []
        self._tells_times = False
        found, together = [], max(1, len(lines) // self._per_step)
        for line in lines:
            found += self._end_part(
                line.said, time_s, "arrival", RESOLUTION_S, line.arrived_s, together
            )
        return found

    def _arrive(self, metrics: StepMetrics, arrived_s: float) -> list[LoggedStep]:
        ended = self.pause() if self._arrivals.is_later(arrived_s) else []
        if self._arrivals.add(StepLine(number=metrics.step, arrived_s=arrived_s, said=self._held)):
            self._held = StepMetrics()
        return ended

    def _take_held(self) -> StepMetrics:
        held, self._held = self._held, StepMetrics()
        return held

    def _end_part(
        self,
        said: StepMetrics,
        time_s: float,
        source: str,
        resolution_s: float,
        arrived_s: float,
        together: int = 1,
    ) -> list[LoggedStep]:
        self._parts.append(time_s)
        self._said_of_parts = _joined(self._said_of_parts, said)
        if len(self._parts) < self._per_step:
            return []
        time_s, self._parts = math.fsum(self._parts), []
        said, self._said_of_parts = self._said_of_parts, StepMetrics()
        if said.step is not None:
            self._numbers.add(said.step)
        step = LoggedStep(
            time_s=time_s,
            loss=said.loss,
            grad_norm=said.grad_norm,
            skipped=said.skipped,
            time_from=source,
            resolution_s=resolution_s,
            arrived_s=arrived_s,
            number=None if said.step is None else said.step // self._per_step,
            together=together,
        )
        return [step]


def _joined(before: StepMetrics, after: StepMetrics) -> StepMetrics:
    """What two lines say of one step."""
    return StepMetrics(
        step=before.step if after.step is None else after.step,
        loss=before.loss if after.loss is None else after.loss,
        grad_norm=before.grad_norm if after.grad_norm is None else after.grad_norm,
        skipped=before.skipped or after.skipped,
    )
