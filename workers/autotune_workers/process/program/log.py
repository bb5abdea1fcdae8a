"""Reads the log of one node of a program: takes lines, returns steps. No clock, no I/O.

A line with a time (or a rate) ends a step. Loss, gradient norm and memory in the lines before it
belong to that step. If lines have step numbers, a repeated number comes from another rank and is
ignored, and a time without a number is another row of the same step. If the trainer logs every few
steps, each such line counts as one step. A log without times and rates is timed by the arrival of
its step lines (`StepArrivals`). The first of the two, a time or a second arrival, decides for the
whole attempt.

Step times from the arrival of step lines:

    step time = (arrival of the last waiting line - arrival of the last counted line) / number of steps between them

The number of steps between two lines is the difference of their step numbers, or the number of
lines if they have none. The first line starts the clock. Lines that arrive within `RESOLUTION_S`
were written at once (a buffer was flushed, or a reader was late): each ends a step, and all get the
same time. If they arrive too soon after the last counted line to be timed, they wait for the next
ones.
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
"""resolution of an arrival: time in which a line gets through a pipe and wakes up the reader,
seconds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A line that ends a step."""

    number: int | None
    """step number; None if the line has none"""
    arrived_s: float
    """time of arrival, seconds"""
    said: StepMetrics
    """metrics of the step"""


@final
class StepArrivals:
    """Times the steps of a log without times, by the arrival of its step lines."""

    def __init__(self) -> None:
        self._first_s = 0.0
        """arrival of the first line"""
        self._counted: StepLine | None = None
        """last line whose step has been timed, or the first line"""
        self._waiting: list[StepLine] = []
        self.at_once = 0
        """number of lines that arrived at once with the first, including it"""

    def add(self, line: StepLine) -> bool:
        """Adds a line. Returns whether it ends a step that `take` times, now or later. In a
        numbered log, lines without numbers are ignored."""
        last = self._waiting[-1] if self._waiting else self._counted
        if last is None or (line.number is not None and last.number is None):
            self._first_s, self._counted, self.at_once = line.arrived_s, line, 1
            self._waiting.clear()
            return False
        if last.number is not None and (line.number is None or line.number <= last.number):
            return False
        # arrived at once with the first line
        if not self._waiting and line.arrived_s - self._first_s < RESOLUTION_S:
            self._counted = line
            self.at_once += 1
            return False
        self._waiting.append(line)
        return True

    def is_later(self, arrived_s: float) -> bool:
        """Whether a line with this arrival came later than the waiting lines, rather than at once
        with them."""
        return bool(self._waiting) and arrived_s - self._waiting[0].arrived_s >= RESOLUTION_S

    def take(self) -> tuple[float, list[StepLine]]:
        """(seconds per step, the waiting lines, each of which ends a step); no lines if they cannot
        be timed yet."""
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
        """Discards the waiting lines, as the log has times after all. Returns the last of them, or
        None."""
        last = self._waiting[-1] if self._waiting else None
        self._waiting.clear()
        return last


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """A completed step according to the log."""

    time_s: float
    """seconds per step"""
    loss: float | None
    """None if not logged"""
    grad_norm: float | None
    """None if not logged"""
    skipped: bool
    """whether the weight update was skipped"""
    time_from: str
    """source of the time: log, rate or arrival; probe if it was observed inside the program"""
    resolution_s: float
    """resolution of the time, seconds"""
    arrived_s: float
    """time of arrival of its line, or end of an observed step, on the node's own monotonic clock"""
    number: int | None = None
    """step number in the log; None if it has none"""
    together: int = 1
    """number of steps that arrived at once and share their mean time"""
    tokens: float | None = None
    """tokens in the step by the rate and time in its line; None if the line lacks one of them"""


def as_series(values: Iterable[float | None]) -> tuple[float, ...]:
    """The values as a series with NaN for None; empty if all are None or NaN."""
    series = tuple(math.nan if value is None else value for value in values)
    return () if all(map(math.isnan, series)) else series


@final
class ProgramLog:
    """Reads one node's log."""

    def __init__(self, request: TrialRequest, read: LineReader) -> None:
        """`read`: reads a log line; from the trainer."""
        config = request.config
        self._sequences, self._ranks = config.global_batch_size, config.world_size
        self._tokens = round(config.global_batch_size * request.workload.tokens_per_sequence)
        unit = request.trainer_options.get("counts", "unknown")
        self._micro_batches_per_step = config.accumulation_steps
        self._line_unit = "" if unit == "unknown" else str(unit)
        """what a step line stands for (a step or a micro-batch), by the spec or the format of the
        log; "" if unknown"""
        self._part_times_s: list[float] = []
        """times of the current step's micro-batches, if each line is a micro-batch"""
        self._part_metrics = StepMetrics()
        """metrics of these micro-batches"""
        self._read = read
        self._held_metrics = StepMetrics()
        self._numbers: set[int] = set()
        self._arrivals = StepArrivals()
        self._has_times: bool | None = None
        """whether the log has times; None if unknown yet"""
        self.said = StepMetrics()
        """metrics of the last line, whether timed or not"""
        self.peak_bytes: float | None = None
        """largest peak memory in the log, bytes; None if it has none"""

    def hear(self, line: str, arrived_s: float) -> list[LoggedStep]:
        """Reads a line. Returns the steps that have ended by now."""
        metrics = self._read(line)
        self.said = metrics or StepMetrics()
        if metrics is not None and metrics.counts and not self._line_unit:
            self._line_unit = metrics.counts
        if metrics is None or (metrics.step is not None and metrics.step in self._numbers):
            return []
        if metrics.peak_memory_bytes is not None:
            self.peak_bytes = max(metrics.peak_memory_bytes, self.peak_bytes or 0.0)
        self._held_metrics = _joined(self._held_metrics, metrics)
        time_s = metrics.time_of(
            tokens_per_step=self._tokens, sequences_per_step=self._sequences, num_ranks=self._ranks
        )
        if time_s is None:
            return (
                self._arrive(metrics, arrived_s)
                if metrics.ends_step and not self._has_times
                else []
            )
        if not 0 < time_s < math.inf or self._has_times is False:
            return []
        self._has_times = True
        if (last := self._arrivals.forget()) is not None:
            self._held_metrics = _joined(last.said, self._held_metrics)
        if self._numbers and self._held_metrics.step is None and self._part_metrics.step is None:
            return []  # another row of the same step: the rate of one rank, or of validation
        source = "rate" if metrics.step_time_s is None else "log"
        ended = self._end_part(self._take_held(), time_s, source, metrics.resolution_s, arrived_s)
        tokens = metrics.tokens_of(num_ranks=self._ranks)
        return [replace(step, tokens=tokens) for step in ended] if self._per_step == 1 else ended

    @property
    def _per_step(self) -> int:
        """Number of lines per step."""
        return self._micro_batches_per_step if self._line_unit == MICRO_BATCHES else 1

    @property
    def arrived_at_once(self) -> int:
        """Number of lines that arrived at once with the first, so that their steps cannot be
        timed."""
        return self._arrivals.at_once

    def pause(self) -> list[LoggedStep]:
        """Call when no further line arrived with the last ones. Returns the steps that the waiting
        lines end."""
        time_s, lines = self._arrivals.take()
        if not lines:
            return []
        self._has_times = False
        steps, together = [], max(1, len(lines) // self._per_step)
        for line in lines:
            steps += self._end_part(
                line.said, time_s, "arrival", RESOLUTION_S, line.arrived_s, together
            )
        return steps

    def _arrive(self, metrics: StepMetrics, arrived_s: float) -> list[LoggedStep]:
        ended = self.pause() if self._arrivals.is_later(arrived_s) else []
        if self._arrivals.add(
            StepLine(number=metrics.step, arrived_s=arrived_s, said=self._held_metrics)
        ):
            self._held_metrics = StepMetrics()
        return ended

    def _take_held(self) -> StepMetrics:
        held, self._held_metrics = self._held_metrics, StepMetrics()
        return held

    def _end_part(
        self,
        metrics: StepMetrics,
        time_s: float,
        source: str,
        resolution_s: float,
        arrived_s: float,
        together: int = 1,
    ) -> list[LoggedStep]:
        self._part_times_s.append(time_s)
        self._part_metrics = _joined(self._part_metrics, metrics)
        if len(self._part_times_s) < self._per_step:
            return []
        time_s, self._part_times_s = math.fsum(self._part_times_s), []
        metrics, self._part_metrics = self._part_metrics, StepMetrics()
        if metrics.step is not None:
            self._numbers.add(metrics.step)
        step = LoggedStep(
            time_s=time_s,
            loss=metrics.loss,
            grad_norm=metrics.grad_norm,
            skipped=metrics.skipped,
            time_from=source,
            resolution_s=resolution_s,
            arrived_s=arrived_s,
            number=None if metrics.step is None else metrics.step // self._per_step,
            together=together,
        )
        return [step]


def _joined(before: StepMetrics, after: StepMetrics) -> StepMetrics:
    """Metrics of one step from two lines; the later line takes precedence."""
    return StepMetrics(
        step=before.step if after.step is None else after.step,
        loss=before.loss if after.loss is None else after.loss,
        grad_norm=before.grad_norm if after.grad_norm is None else after.grad_norm,
        skipped=before.skipped or after.skipped,
    )
