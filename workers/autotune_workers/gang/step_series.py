"""The reported steps of one attempt, and the measurement computed from them."""

from __future__ import annotations

from dataclasses import replace

from autotune.ports import AttemptEnded, StepsReported, TrialRequest
from autotune.spec import Failure, FailureKind, Measurement
from autotune_workers.gang.wire import Message


class StepSeries:
    """Times, losses and gradient norms of all steps in order, warm-up included."""

    def __init__(self, request: TrialRequest) -> None:
        self._request = request
        self._times: list[float] = []
        self._losses: list[float] = []
        self._grad_norms: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    def add(self, message: Message) -> StepsReported | None:
        """Adds a step and returns its report; None, without adding it, if it is not the next
        one."""
        step = message["step"]
        if step != len(self):
            return None
        self._times.append(message["time_s"])
        self._losses.append(message["loss"])
        self._grad_norms.append(message["grad_norm"])
        return StepsReported(
            id=self._request.id,
            first_step=step,
            step_times_s=(message["time_s"],),
            losses=(message["loss"],),
            grad_norms=(message["grad_norm"],),
        )

    def so_far(self, first_step_s: float | None) -> Measurement | None:
        """The measurement of a trial that failed; None if it did not complete the warm-up.
        `first_step_s`: set-up time, seconds."""
        warmup = self._request.measure.warmup_steps
        if len(self) <= warmup:
            return None
        return Measurement(
            step_times_s=tuple(self._times[warmup:]),
            losses=tuple(self._losses[warmup:]),
            grad_norms=tuple(self._grad_norms[warmup:]),
            tokens_per_step=self._request.config.global_batch_size * self._request.workload.seq_len,
            num_ranks=self._request.config.world_size,
            setup_s=first_step_s or 0.0,
        )

    def end(self, result: Message | None, first_step_s: float | None) -> AttemptEnded:
        """The end of an attempt without failures. `result`: rank 0's message with the measurement;
        without one the attempt failed with METRICS_MISSING."""
        result = result or {}
        values = result.get("measurement")
        measurement = Measurement.from_dict(values) if values else None
        if measurement is None or not measurement.step_times_s:
            failure = Failure(
                kind=FailureKind.METRICS_MISSING,
                message=f"the trial ended without a measured step; {len(self)} steps were reported",
                rank=0,
                step=len(self) or None,
            )
            return AttemptEnded(id=self._request.id, failure=failure)
        return AttemptEnded(
            id=self._request.id,
            measurement=replace(measurement, setup_s=max(measurement.setup_s, first_step_s or 0.0)),
            stopped=str(result.get("stopped") or ""),
        )


def joined(first: StepsReported, second: StepsReported) -> StepsReported:
    """Merges two consecutive reports of one attempt."""
    return replace(
        first,
        step_times_s=first.step_times_s + second.step_times_s,
        losses=first.losses + second.losses,
        grad_norms=first.grad_norms + second.grad_norms,
    )
