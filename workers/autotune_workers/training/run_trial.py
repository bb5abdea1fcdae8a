"""One attempt on one rank: build, warm up, measure until the stop rule ends it, clean up.

The step time is that of the slowest rank, from a common start until its device has finished,
without the collectives that agree on the time and on stopping. On sequences of unequal length,
measured seconds are divided by the step's work relative to a mean step: the lengths are the same
for all configs, so their variation must not count as noise. Estimates of post-training phases that
trials do not run are added. The loss is the mean over the global batch, the gradient norm is
global, both before the update.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from autotune import __version__
from autotune.cost import calibration_for, training_flops_per_token
from autotune.cost.rl.step import phases_beside
from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.reward import NoiseScale, noise_scale, spikes
from autotune.spec import Failure, FailureKind, Measurement
from autotune.stopping import trial_decision
from autotune_workers.gang.failure_kind import divergence, root_cause
from autotune_workers.probe.injected.profile import Profile
from autotune_workers.probe.injected.versions import versions
from autotune_workers.speed_variables import SET_FOR_RANKS, speed_variables
from autotune_workers.training.measuring.gpu_state import GpuState, worst_of
from autotune_workers.training.measuring.measure import (
    MeanPower,
    PeakMemory,
    allocator_settings,
    device_readings,
    release,
    synchronize,
)
from autotune_workers.training.measuring.rank_evidence import RankEvidence
from autotune_workers.training.parallel.mesh import (
    RankContext,
    destroy_groups,
    line_up,
    living_groups,
)
from autotune_workers.training.post_training import PostTraining
from autotune_workers.training.step import Outcome, Training, part_size

__all__ = ["RankContext", "StepReport", "TrialFailed", "TrialResult", "run_trial"]

NOISE_STEPS = 1000
"""maximum number of steps, the last ones, from which the gradient noise scale is estimated"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step, the same on all ranks."""

    step: int
    """from 0, warm-up included"""
    time_s: float
    loss: float
    grad_norm: float
    finite: bool
    skipped: bool
    peak_memory_bytes: float | None = None
    """largest of all ranks since the trial began; None if it cannot be read"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The result of a successful attempt."""

    measurement: Measurement
    """the same on all ranks"""
    stopped: str = ""
    """why it ended early; empty if it did not"""


class TrialFailed(Exception):  # noqa: N818 - it carries a Failure, and is named like it
    """The attempt failed as DIVERGED or INVALID."""

    def __init__(self, failure: Failure, measurement: Measurement | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.measurement = measurement


Report = Callable[[StepReport], bool]
"""Called after each step; returns False to end the trial. Only rank 0's return value counts."""


def run_trial(request: TrialRequest, context: RankContext, report: Report) -> TrialResult:
    """Runs the attempt; collective over the ranks of the default process group, which must be
    exactly the gang.

    Raises `TrialFailed` if the config is refused (INVALID) or training diverges (DIVERGED); other
    errors propagate as their root cause. A successful trial leaves the rank as it was before. After
    a failure the caller must tear down the process groups, and must report the failure first,
    because tearing down may wait forever for a failed peer.
    """
    groups = living_groups()
    try:
        result = _Attempt(request, context, report).run()
    except ConfigError as error:
        raise TrialFailed(
            Failure(kind=FailureKind.INVALID, message=str(error), rank=context.rank)
        ) from None
    except Exception as error:
        raise root_cause(error) from None
    destroy_groups(groups)
    release(context.device)
    return result


class _Attempt:
    def __init__(self, request: TrialRequest, context: RankContext, report: Report) -> None:
        self._request, self._context, self._report = request, context, report
        self._steps: list[StepReport] = []
        self._phases: list[dict[str, float]] = []
        self._busy_s: list[float] = []
        self._outcomes: list[Outcome] = []
        self._setup_s = 0.0
        self._began_s = time.perf_counter()
        self._memory = PeakMemory(context.device)
        self._power = MeanPower.of(context.device)
        self._gpu = GpuState.of(context.device)
        self._evidence: RankEvidence | None = None

    def run(self) -> TrialResult:
        self._memory.start()
        training: Training | PostTraining
        if self._request.workload.rl is None:
            training = Training(self._request, self._context)
        else:
            training = PostTraining(self._request, self._context)
        self._evidence = RankEvidence(training.phases, self._context)
        try:
            return self._run(training)
        finally:
            self._evidence.end()

    def _run(self, training: Training | PostTraining) -> TrialResult:
        stopped = ""
        synchronize(self._context.device)
        self._setup_s = time.perf_counter() - self._began_s
        while True:
            if len(self._steps) <= self._request.measure.warmup_steps:
                self._power.start()
                self._gpu.start()
            step = self._step(training, len(self._steps))
            self._steps.append(step)
            asked_to_stop = not self._report(step)
            self._refuse_divergence(step)
            stop, reason = self._agree_to_stop(asked_to_stop)
            if stop:
                stopped = reason
                break
        peaks = self._peaks()
        measurement = replace(self._measured(), **peaks)
        if self._request.profile:
            measurement = self._profiled(training, measurement)
        assert self._evidence is not None
        measurement = replace(
            measurement,
            evidence=self._evidence.of_all(
                self._request, tuple(self._busy_s[self._request.measure.warmup_steps :])
            ),
        )
        return TrialResult(measurement=measurement, stopped=stopped)

    def _step(self, training: Training | PostTraining, number: int) -> StepReport:
        device = self._context.device
        assert self._evidence is not None
        with self._evidence.step(
            tokens=self._request.config.micro_batch_size * self._request.config.accumulation_steps
        ):
            with self._evidence.loading():
                tokens, targets = training.batch(number)
            with self._evidence.waiting():
                line_up(self._context)
            start_s = time.perf_counter()
            outcome = training.step(tokens, targets)
            synchronize(device)
        self._outcomes.append(outcome)
        own_s, own_peak = time.perf_counter() - start_s, self._memory.bytes()
        own_phases = training.own_phases_s if isinstance(training, PostTraining) else {}
        local = [own_s, -1.0 if own_peak is None else own_peak, *own_phases.values()]
        slowest = torch.tensor(local, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        time_s, peak, *phases_s = slowest.tolist()
        self._busy_s.append(time_s)
        if own_phases:
            time_s = self._whole_step_s(
                time_s / targets,
                {n: s / targets for n, s in zip(own_phases, phases_s, strict=True)},
            )
        return StepReport(
            step=number,
            time_s=time_s,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            finite=outcome.finite,
            skipped=outcome.skipped,
            peak_memory_bytes=peak if peak >= 0 else None,
        )

    def _whole_step_s(self, busy_s: float, phases_s: dict[str, float]) -> float:
        """Seconds of the step including the estimates of phases that trials do not run."""
        workload = self._request.workload
        estimated_s = phases_beside(
            workload, self._request.config, calibration_for(workload), busy_s
        )
        self._phases.append({**phases_s, **estimated_s})
        return busy_s + sum(estimated_s.values())

    def _refuse_divergence(self, step: StepReport) -> None:
        """Raises `TrialFailed` if loss or gradient norm is not finite, or the loss has been far
        above that of uniform guessing for several steps."""
        problem = ""
        if not step.finite and not step.skipped:
            problem = f"loss {step.loss:g} and gradient norm {step.grad_norm:g} must be finite"
        code = self._request.workload.model.code
        if code is None or code.reads_tokens:  # a user-defined loss may have any scale
            problem = problem or divergence(
                [s.loss for s in self._steps], self._request.workload.model.vocab_size
            )
        if problem:
            failure = Failure(
                kind=FailureKind.DIVERGED,
                message=f"training diverged: {problem}",
                rank=self._context.rank,
                step=step.step,
            )
            raise TrialFailed(failure, self._measured())

    def _agree_to_stop(self, asked: bool) -> tuple[bool, str]:
        """Whether to stop after this step and the reason if early, as rank 0 decides. `asked`: the
        runner asked to stop.

        Rank 0 broadcasts a code: 0 continue, 1 measured, 2 cannot win, 3 asked to stop.
        """
        measure = self._request.measure
        verdict = trial_decision(
            [s.time_s for s in self._steps[measure.warmup_steps :]],
            measure,
            self._request.beat_step_time_s,
        )
        if asked:
            code = 3
        elif verdict.stopped_early:
            code = 2
        else:
            code = 1 if verdict.stop else 0
        decision = torch.tensor([code], device=self._context.device)
        dist.broadcast(decision, src=0)
        code = int(decision.item())
        return code > 0, {2: verdict.reason, 3: "requested by the runner"}.get(code, "")

    def _peaks(self) -> dict[str, Any]:
        """Memory, power and device readings of all ranks, as fields of `Measurement`; collective."""
        device = self._context.device
        peak, watts = self._memory.bytes(), self._power.watts()
        reserved = self._memory.reserved_bytes()
        mine = torch.tensor(
            [
                -1 if peak is None else peak,
                reserved or 0,
                -1 if watts is None else round(1e3 * watts),
                self._memory.retries(),
                *self._gpu.as_integers(),
            ],
            dtype=torch.int64,
            device=device,
        )
        everyone = [torch.empty_like(mine) for _ in range(self._context.world_size)]
        dist.all_gather(everyone, mine)
        rows: list[list[int]] = [row.tolist() for row in everyone]
        peaks, reserved_bytes, milliwatts, retries, *_ = zip(*rows, strict=True)
        known = min(peaks) >= 0
        readings = device_readings(device)
        if reserved is not None:
            readings["reserved_memory_bytes"] = float(max(reserved_bytes))
            readings["alloc_retries"] = float(max(retries))
        readings |= worst_of([row[4:] for row in rows])
        if min(milliwatts) >= 0:
            readings["power_watts"] = sum(milliwatts) / len(milliwatts) / 1e3
        return {
            "peak_memory_bytes": float(max(peaks)) if known else None,
            "rank_peak_memory_bytes": tuple(float(p) for p in peaks) if known else (),
            "utilization": readings,
            "allocator": allocator_settings() if reserved is not None else "",
        }

    def _profiled(self, training: Training | PostTraining, measured: Measurement) -> Measurement:
        """The measurement with the breakdown of one more, profiled step: seconds by cause, mean
        over ranks; collective."""
        device = self._context.device
        tokens, targets = training.batch(len(self._steps))

        line_up(self._context)
        profile = Profile(torch, on_gpu=device.type == "cuda")
        profile.begin()
        training.step(tokens, targets)
        mine = profile.end(pipelined=self._request.config.pp > 1)
        local_s = {**mine.parts_s, "communication_overlapped": mine.overlapped_s}
        delay_s = math.nan if mine.launch_delay_s is None else mine.launch_delay_s
        seconds = torch.tensor([*local_s.values(), delay_s], dtype=torch.float64, device=device)
        dist.all_reduce(seconds)
        *parts, delay = (seconds / self._context.world_size).tolist()
        readings = dict(measured.utilization) | (
            {} if math.isnan(delay) else {"kernel_launch_delay_s": delay}
        )
        return replace(
            measured, breakdown_s=dict(zip(local_s, parts, strict=True)), utilization=readings
        )

    def _measured(self) -> Measurement:
        """The measurement without what other ranks contribute. Needs no communication."""
        workload, config = self._request.workload, self._request.config
        warmup = self._request.measure.warmup_steps
        counted, phases = self._steps[warmup:], self._phases[warmup:]
        peaks = [s.peak_memory_bytes for s in counted if s.peak_memory_bytes is not None]
        code = workload.model.code
        has_flops = workload.rl is None and (code is None or not code.guessed)
        measured = Measurement(
            step_times_s=tuple(s.time_s for s in counted),
            tokens_per_step=round(config.global_batch_size * workload.tokens_per_sequence),
            num_ranks=config.world_size,
            losses=tuple(s.loss for s in counted),
            grad_norms=tuple(s.grad_norm for s in counted),
            step_peak_memory_bytes=tuple(peaks) if len(peaks) == len(counted) else (),
            nonfinite_steps=sum(not s.finite and not s.skipped for s in counted),
            skipped_steps=sum(s.skipped for s in counted),
            setup_s=self._setup_s,
            versions={"autotune": __version__, **versions(torch)},
            environment={
                name: text
                for name, text in speed_variables(os.environ).items()
                if name not in SET_FOR_RANKS
            },
            flops_per_token=training_flops_per_token(workload) if has_flops else None,
            phases_s={n: sum(p[n] for p in phases) / len(phases) for n in phases[0]}
            if phases
            else {},
            peak_flops_per_s=workload.cluster.gpu.peak_flops_per_s.get(config.precision),
            memory_capacity_bytes=workload.cluster.gpu.memory_bytes,
        )
        spiked = set(spikes(measured))
        noise = self._noise([o for i, o in enumerate(self._outcomes[warmup:]) if i not in spiked])
        if noise is None:
            return measured
        return replace(
            measured,
            gradient_noise_scale=noise.value,
            gradient_noise_interval=(noise.low, noise.high),
        )

    def _noise(self, outcomes: list[Outcome]) -> NoiseScale | None:
        """Gradient noise scale from the squared gradient norms at both batch sizes, in the steps
        that have both; None if it cannot be estimated."""
        known = [o for o in outcomes if o.finite and math.isfinite(o.part_square)][-NOISE_STEPS:]
        return noise_scale(
            [o.part_square for o in known],
            [o.grad_norm**2 for o in known],
            small=part_size(self._request.config),
            big=self._request.config.global_batch_size,
        )
