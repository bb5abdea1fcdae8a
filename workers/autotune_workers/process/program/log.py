"""The log of one node of a program: lines in, steps out. No clock, no I/O.

A line with a time (or a rate) ends a step; loss, gradient norm and memory of the lines before it belong to that step. Where lines
number their steps, a number that was there already is another rank's and is ignored. A time without a number, where steps have numbers, is another row of the same step. A trainer that logs every few steps is measured by what
it logs: each such line counts as one step. One that logs neither times nor rates is timed by the arrival of its step lines
(`step_arrivals`); what comes first, a time or a later arrival, decides for the whole attempt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from autotune.ports import TrialRequest
from autotune.trainers import StepMetrics
from autotune.trainers.base.trainer import LineReader
from autotune.trainers.logs.formats import MICRO_BATCHES
from autotune_workers.process.program.step_arrivals import RESOLUTION_S, StepArrivals, StepLine


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
            return self._arrive(metrics, arrived_s) if metrics.ends_step and not self._tells_times else []
        if not 0 < time_s < math.inf or self._tells_times is False:
            return []
        self._tells_times = True
        if (last := self._arrivals.forget()) is not None:
            self._held = _joined(last.said, self._held)
        if self._numbers and self._held.step is None and self._said_of_parts.step is None:
            return []  # another row of the same step: its rate on one rank, or of validation
        source = "rate" if metrics.step_time_s is None else "log"
        return self._end_part(self._take_held(), time_s, source, metrics.resolution_s, arrived_s)

    @property
    def _per_step(self) -> int:
        """Lines of a step."""
        return self._accumulates if self._counts == MICRO_BATCHES else 1

    @property
    def arrived_at_once(self) -> int:
        """Steps whose lines came so soon after the first one that nothing tells how long they took."""
        return self._arrivals.at_once

    def pause(self) -> list[LoggedStep]:
        """No further line came at once with those before: the steps that they end."""
        time_s, lines = self._arrivals.take()
        if not lines:
            return []
        self._tells_times = False
        found, together = [], max(1, len(lines) // self._per_step)
        for line in lines:
            found += self._end_part(line.said, time_s, "arrival", RESOLUTION_S, line.arrived_s, together)
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
        self, said: StepMetrics, time_s: float, source: str, resolution_s: float, arrived_s: float, together: int = 1
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
