"""The log of one node of a program: lines in, steps out. No clock, no I/O.

A line with a time (or a rate) ends a step; loss, gradient norm and memory of the lines before it belong to that step. Where lines
number their steps, a number that was there already is another rank's and is ignored. A time without a number, where steps have numbers, is another row of the same step. A trainer that logs every few steps is measured by what
it logs: each such line counts as one step. One that logs neither times nor rates is timed by the arrival of its step lines
(`step_arrivals`); what comes first, a time or a second arrival, decides for the whole attempt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from autotune.ports import TrialRequest
from autotune.trainers import StepMetrics
from autotune.trainers.known_logs import MICRO_BATCHES
from autotune.trainers.trainer import LineReader
from autotune_workers.process.step_arrivals import RESOLUTION_S, StepArrivals


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


@final
class ProgramLog:
    """What has been read of one log."""

    def __init__(self, request: TrialRequest, read: LineReader) -> None:
        """`read`: the trainer's reader of log lines."""
        config = request.config
        self._sequences, self._ranks = config.global_batch_size, config.world_size
        self._tokens = config.global_batch_size * request.workload.seq_len
        asked = request.trainer_options.get("counts", "unknown")
        self._accumulates = config.accumulation_steps
        self._counts = "" if asked == "unknown" else str(asked)
        """what a line counts, as the spec says, or as the form of the log tells"""
        self._parts: list[float] = []
        """times of the micro-batches of a step, where the log counts those"""
        self._read = read
        self._held = StepMetrics()
        self._numbers: set[int] = set()
        self._arrivals = StepArrivals()
        self._is_timed_by_arrival: bool | None = None
        self.said = StepMetrics()
        """what the last line said, timed or not"""
        self.peak_bytes: float | None = None
        """the largest memory that it spoke of"""

    def hear(self, line: str, arrived_s: float) -> LoggedStep | None:
        """A line; the step that it ends."""
        metrics = self._read(line)
        self.said = metrics or StepMetrics()
        if metrics is not None and metrics.counts and not self._counts:
            self._counts = metrics.counts
        if metrics is None or (metrics.step is not None and metrics.step in self._numbers):
            return None
        if metrics.peak_memory_bytes is not None:
            self.peak_bytes = max(metrics.peak_memory_bytes, self.peak_bytes or 0.0)
        held = self._held
        self._held = StepMetrics(
            step=metrics.step if metrics.step is not None else held.step,
            loss=metrics.loss if metrics.loss is not None else held.loss,
            grad_norm=metrics.grad_norm if metrics.grad_norm is not None else held.grad_norm,
            skipped=metrics.skipped or held.skipped,
        )
        time_s = metrics.time_of(
            tokens_per_step=self._tokens, sequences_per_step=self._sequences, num_ranks=self._ranks
        )
        source, resolution_s = "rate" if metrics.step_time_s is None else "log", metrics.resolution_s
        if time_s is None and metrics.ends_step:
            time_s = self._arrivals.time_of(metrics.step, arrived_s)
            source, resolution_s = "arrival", RESOLUTION_S
        is_arrival = source == "arrival"
        if time_s is None or not 0 < time_s < math.inf or self._is_timed_by_arrival not in (None, is_arrival):
            return None
        self._is_timed_by_arrival = is_arrival
        if self._numbers and self._held.step is None:
            return None  # another row of the same step: its rate on one rank, or of validation
        self._parts.append(time_s)
        if len(self._parts) < self._per_step:
            return None
        time_s, self._parts = math.fsum(self._parts), []
        return self._end_step(time_s, source, resolution_s, arrived_s)

    @property
    def _per_step(self) -> int:
        """Lines of a step."""
        return self._accumulates if self._counts == MICRO_BATCHES else 1

    def _end_step(self, time_s: float, source: str, resolution_s: float, arrived_s: float) -> LoggedStep:
        held, self._held = self._held, StepMetrics()
        if held.step is not None:
            self._numbers.add(held.step)
        return LoggedStep(
            time_s=time_s,
            loss=held.loss,
            grad_norm=held.grad_norm,
            skipped=held.skipped,
            time_from=source,
            resolution_s=resolution_s,
            arrived_s=arrived_s,
            number=None if held.step is None else held.step // self._per_step,
        )
