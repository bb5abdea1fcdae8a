"""One attempt of somebody's own program as a state machine: log lines and time in, steps and the verdict out. No clock, no I/O.

A line with a time (or a rate) ends a step; loss, gradient norm and memory of the lines before it belong to that step. Where lines
number their steps, a number that was there already is another rank's and is ignored. A trainer that logs every few steps is measured by what
it logs: each such line counts as one step. One that logs neither times nor rates is timed by the arrival of its step lines
(`step_arrivals`); what comes first, a time or a second arrival, decides for the whole attempt. Deadlines, stop rule and divergence are those of a gang (`gang`). Peak memory comes from
the log; without it, on a CPU, from the subreaper, and on a GPU it is unknown.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from autotune.cost import model_flops_per_token
from autotune.ports import AttemptEnded, StepsReported, TrialRequest
from autotune.spec import Failure, FailureKind, Measurement
from autotune.stopping import trial_decision
from autotune.trainers import StepMetrics
from autotune.trainers.trainer import MAX_LINE, LineReader
from autotune_workers.gang.failure_kind import divergence, of_death
from autotune_workers.process.rank_processes import LOG_TAIL_LINES
from autotune_workers.process.step_arrivals import RESOLUTION_S, StepArrivals


class ProgramTrial:
    """What is known of one attempt. `ending` turns true when the program shall end; `end` gives the verdict once it has."""

    def __init__(self, request: TrialRequest, read: LineReader, now_s: float) -> None:
        """`read`: the trainer's reader of log lines."""
        self.request, self.ending = request, False
        self.tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._read = read
        self._launched_s = self._progress_s = now_s
        self._setup_s = 0.0
        self._times: list[float] = []
        self._losses: list[float] = []
        self._grad_norms: list[float] = []
        self._skipped: list[bool] = []
        self._held = StepMetrics()
        self._numbers: set[int] = set()
        self._arrivals = StepArrivals()
        self._time_from = ""
        self._resolution_s = 0.0
        self._peak: float | None = None
        self._stopped = ""
        self._cancelled = False
        self._failure: Failure | None = None

    def hear(self, line: str, now_s: float) -> StepsReported | None:
        """A line of the log; the step that it ends. What comes after the verdict is kept as evidence only."""
        self.tail.append(line[:MAX_LINE])
        metrics = None if self.ending else self._read(line)
        if metrics is None or (metrics.step is not None and metrics.step in self._numbers):
            return None
        if metrics.peak_memory_bytes is not None:
            self._peak = max(metrics.peak_memory_bytes, self._peak or 0.0)
        held = self._held
        self._held = StepMetrics(
            step=metrics.step if metrics.step is not None else held.step,
            loss=metrics.loss if metrics.loss is not None else held.loss,
            grad_norm=metrics.grad_norm if metrics.grad_norm is not None else held.grad_norm,
            skipped=metrics.skipped or held.skipped,
        )
        config = self.request.config
        time_s = metrics.time_of(
            tokens_per_step=self._tokens_per_step,
            sequences_per_step=config.global_batch_size,
            num_ranks=config.world_size,
        )
        source, resolution_s = "rate" if metrics.step_time_s is None else "log", metrics.resolution_s
        if time_s is None and metrics.ends_step:
            time_s = self._arrivals.time_of(metrics.step, now_s)
            source, resolution_s = "arrival", RESOLUTION_S
        is_arrival, was_arrival = source == "arrival", self._time_from == "arrival"
        if time_s is None or not 0 < time_s < math.inf or (self._time_from and is_arrival != was_arrival):
            return None
        self._time_from, self._resolution_s = source, resolution_s
        return self._end_step(time_s, now_s)

    def _end_step(self, time_s: float, now_s: float) -> StepsReported:
        held, self._held = self._held, StepMetrics()
        if held.step is not None:
            self._numbers.add(held.step)
        if not self._times:
            self._setup_s = max(0.0, now_s - self._launched_s - time_s)
        self._progress_s = now_s
        self._times.append(time_s)
        self._losses.append(math.nan if held.loss is None else held.loss)
        self._grad_norms.append(math.nan if held.grad_norm is None else held.grad_norm)
        self._skipped.append(held.skipped)
        self._refuse_divergence(held)
        if not self.ending:
            counted = self._times[self.request.measure.warmup_steps :]
            verdict = trial_decision(counted, self.request.measure, self.request.beat_step_time_s)
            self.ending, self._stopped = verdict.stop, verdict.reason if verdict.stopped_early else ""
        return StepsReported(
            id=self.request.id,
            first_step=len(self._times) - 1,
            step_times_s=(time_s,),
            losses=(self._losses[-1],),
            grad_norms=(self._grad_norms[-1],),
        )

    def _refuse_divergence(self, step: StepMetrics) -> None:
        problem = ""
        if not step.skipped and not all(math.isfinite(x) for x in (step.loss, step.grad_norm) if x is not None):
            problem = f"loss {step.loss} and gradient norm {step.grad_norm} must be finite"
        elif not any(math.isnan(loss) for loss in self._losses):
            problem = divergence(self._losses, self.request.workload.model.vocab_size)
        if problem:
            self._fail(FailureKind.DIVERGED, f"training diverged: {problem}", step=len(self._times) - 1)

    def tick(self, now_s: float) -> None:
        """Checks the deadlines."""
        measure, done = self.request.measure, len(self._times)
        if self.ending:
            return
        if now_s - self._launched_s >= measure.trial_timeout_s:
            law = f"the trial took longer than trial_timeout_s={measure.trial_timeout_s:g}"
            self._fail(FailureKind.TIMEOUT, law, step=done or None)
        elif not done and now_s - self._launched_s >= measure.start_timeout_s:
            law = f"the log says no first step within start_timeout_s={measure.start_timeout_s:g}"
            self._fail(FailureKind.HANG, law)
        elif done and now_s - self._progress_s >= measure.step_timeout_s:
            law = f"the log says no step after step {done - 1} within step_timeout_s={measure.step_timeout_s:g}"
            self._fail(FailureKind.HANG, law, step=done)

    def cancel(self) -> None:
        """Ends the attempt as cancelled, unless it is already ending."""
        self._cancelled = self._cancelled or not self.ending
        self.ending = True

    def refuse(self, kind: FailureKind, message: str, exception: str = "") -> None:
        """Ends the attempt before the program ran."""
        self._fail(kind, message, exception=exception)

    def end(self, *, code: int | None, kernel_oom: bool = False, peak_bytes: int | None = None) -> AttemptEnded:
        """The program and all below it are gone; `code` None: its subreaper was lost, too."""
        done, gpu = len(self._times), self.request.workload.cluster.gpu
        if self._peak is None and gpu.is_cpu and peak_bytes:
            self._peak = float(peak_bytes)
        if self._cancelled:
            return AttemptEnded(id=self.request.id, cancelled=True)
        if not self.ending:
            counted, least = max(0, done - self.request.measure.warmup_steps), self.request.measure.min_steps
            if code != 0:
                where, why = done or None, "its subreaper was lost"
                death = of_death(
                    rank=None, code=code, step=where, log_tail=tuple(self.tail), kernel_oom=kernel_oom, why=why
                )
                self._failure = death.failure()
            elif counted < least:
                words = f"{done} steps with a time" if done else "no step with a time"
                law = f"the program ended well, but its log says {words}, and {least} after warm-up must be measured"
                self._fail(FailureKind.METRICS_MISSING, law, step=done or None)
        failure = self._failure
        if failure is not None and not failure.log_tail:
            failure = replace(failure, log_tail=tuple(self.tail))
        return AttemptEnded(
            id=self.request.id, failure=failure, measurement=self._measured(), stopped="" if failure else self._stopped
        )

    def _fail(self, kind: FailureKind, message: str, *, step: int | None = None, exception: str = "") -> None:
        self._failure = Failure(kind=kind, message=message, exception=exception, step=step)
        self.ending = True

    @property
    def _tokens_per_step(self) -> int:
        return self.request.config.global_batch_size * self.request.workload.seq_len

    def _measured(self) -> Measurement | None:
        """What was seen after warm-up."""
        warmup, workload, config = self.request.measure.warmup_steps, self.request.workload, self.request.config
        if len(self._times) <= warmup:
            return None
        losses, norms = tuple(self._losses[warmup:]), tuple(self._grad_norms[warmup:])
        return Measurement(
            step_times_s=tuple(self._times[warmup:]),
            losses=() if all(map(math.isnan, losses)) else losses,
            grad_norms=() if all(map(math.isnan, norms)) else norms,
            skipped_steps=sum(self._skipped[warmup:]),
            peak_memory_bytes=self._peak,
            tokens_per_step=self._tokens_per_step,
            num_ranks=config.world_size,
            setup_s=self._setup_s,
            time_from=self._time_from,
            time_resolution_s=self._resolution_s,
            flops_per_token=model_flops_per_token(workload.model, workload.seq_len),
            peak_flops_per_s=workload.cluster.gpu.peak_flops_per_s.get(config.precision),
            memory_capacity_bytes=workload.cluster.gpu.memory_bytes,
        )
