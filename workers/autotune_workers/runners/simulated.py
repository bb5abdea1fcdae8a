"""A runner without processes: each trial's outcome is the cost model's estimate, with seeded noise
and injectable faults.

A trial's outcome is a deterministic function of (seed, values of the knobs that the estimate uses,
number of earlier measurements of the config in its study, faults), regardless of the order of
calls, so a resumed study ends like an uninterrupted one. Only faults that a second attempt may
avoid (a lost worker) are drawn per attempt. Every config has its own true step time and peak
memory, which differ from the estimate by a constant factor:

    step time  T(c) = estimate(c) * exp(bias * z_t(c))         z ~ N(0, 1), drawn once per config from the seed
    peak       M(c) = estimate(c) * exp(memory_bias * z_m(c))  above the GPU's memory the trial fails: OUT_OF_MEMORY
    one step   t_i  = T(c) * exp(noise * e_i), e_i ~ N(0, 1); one step in `outlier_every` takes three times as long

Assumptions: steps are independent, all ranks are equal, set-up takes a constant time. Losses fall
along a fixed curve, independent of config and noise, except that fp16 skips its first step, as with
an initial loss scale that is too high.
"""

from __future__ import annotations

import heapq
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.cost.model_knobs import COST_MODEL
from autotune.errors import RunnerError, SpecError
from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptStarted,
    RunnerEvent,
    StepsReported,
    TrialRequest,
)
from autotune.ports.trial_runner import UNLIMITED_RANKS
from autotune.spec import Failure, FailureKind, Measurement
from autotune.spec.checks import one_of, positive
from autotune.spec.texts.as_text import format_bytes

FAULTS: Mapping[str, FailureKind | None] = {
    "out_of_memory": FailureKind.OUT_OF_MEMORY,
    "diverged": FailureKind.DIVERGED,
    "hang": FailureKind.HANG,
    "timeout": FailureKind.TIMEOUT,
    "invalid": FailureKind.INVALID,
    "metrics_missing": FailureKind.METRICS_MISSING,
    "worker_lost": FailureKind.WORKER_LOST,
    "error": FailureKind.ERROR,
    "duplicate": None,
    "late": None,
}
"""Injectable faults, with the failure kinds that they cause. `duplicate` ends the attempt twice and
`late` reports steps after its end: violations of the runner's contract that a study must
survive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFault:
    """A fault, and the attempts in which it may occur."""

    kind: str
    """one of FAULTS"""
    probability: float = 1.0
    """probability in each matching attempt, 0 to 1"""
    trial: int | None = None
    """number of the only matching trial; None: all"""
    attempt: int | None = None
    """number of the only matching attempt; None: all"""

    def __post_init__(self) -> None:
        one_of("runner.faults.kind", self.kind, FAULTS)
        positive("runner.faults.probability", self.probability, zero=True)

    def meets(self, request: TrialRequest, draw: float) -> bool:
        """Whether the fault occurs in this attempt, given a uniform draw from 0 to 1."""
        return (
            self.trial in (None, request.number)
            and self.attempt in (None, request.attempt)
            and draw < self.probability
        )


def read_faults(
    faults: Mapping[str, float] | Sequence[Mapping[str, Any]],
) -> tuple[SimulatedFault, ...]:
    """The faults of the runner's option: probabilities by kind, or one mapping per fault. Raises
    `SpecError` for anything else."""
    if isinstance(faults, Mapping):
        return tuple(SimulatedFault(kind=kind, probability=p) for kind, p in faults.items())
    try:
        return tuple(SimulatedFault(**fault) for fault in faults)
    except TypeError:
        known = "kind, probability, trial, attempt"
        raise SpecError(
            f"a fault must be an object with {known}, but got {faults!r}", field="runner.faults"
        ) from None


SIMULATED_RUNNER = replace(COST_MODEL, part="simulated runner")
"""The knobs that it uses: the same as the cost model."""
SETUP_S = 2.0
"""simulated seconds before the first step"""


@dataclass(slots=True, order=True)
class _Due:
    at_s: float
    sequence: int
    event: RunnerEvent = field(compare=False)


class SimulatedRunner:
    """Simulates trials with the cost model and noise, without hardware."""

    def __init__(
        self,
        *,
        noise: float = 0.02,
        bias: float = 0.1,
        memory_bias: float = 0.05,
        outlier_every: int = 20,
        gradient_noise: float = 32.0,
        seed: int = 0,
        faults: Mapping[str, float] | Sequence[Mapping[str, Any]] = (),
        time_scale: float = 0.0,
        capacity: int = UNLIMITED_RANKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`noise`, `bias`, `memory_bias`: standard deviations of the logarithms above.
        `outlier_every`: 0 means never. `gradient_noise`: gradient noise scale that every trial
        reports, sequences.

        `faults`: `{"hang": 0.1}` (probability per attempt) or `[{"kind": "hang", "trial": 3,
        "attempt": 1}]`. `time_scale`: real seconds per simulated second; 0: all events are due at
        once. Raises `SpecError` for invalid values.
        """
        for name, value in (
            ("noise", noise),
            ("bias", bias),
            ("memory_bias", memory_bias),
            ("time_scale", time_scale),
            ("gradient_noise", gradient_noise),
        ):
            positive(f"runner.{name}", value, zero=True)
        self._gradient_noise = float(gradient_noise)
        self._noise, self._bias, self._memory_bias = noise, bias, memory_bias
        self._outlier_every, self._seed, self._time_scale = outlier_every, seed, time_scale
        self._faults = read_faults(faults)
        self.capacity = capacity
        """number of ranks that can be in use at once"""
        self._clock = clock
        self._queue: list[_Due] = []
        self._sequence = 0
        self._running: set[AttemptId] = set()
        self._closed = False

    @property
    def trainers(self) -> Sequence[str]:
        """Names of all trainers, as none is really run."""
        from autotune.trainers import trainer_names

        return tuple(trainer_names())

    def start(self, request: TrialRequest) -> None:
        """Starts the attempt. Raises `RunnerError` if the runner was closed."""
        if self._closed:
            raise RunnerError("the runner is closed")
        self._running.add(request.id)
        self._queue_events(request)

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """The events that are due. Waits up to `timeout_s` for the first one."""
        if self._time_scale and self._queue:
            time.sleep(max(0.0, min(timeout_s, self._queue[0].at_s - self._clock())))
        now = self._clock()
        events: list[RunnerEvent] = []
        while self._queue and (not self._time_scale or self._queue[0].at_s <= now):
            event = heapq.heappop(self._queue).event
            if isinstance(event, AttemptEnded):
                self._running.discard(event.id)
            events.append(event)
        return events

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt at once, as cancelled, and drops its remaining events."""
        if attempt not in self._running:
            return
        self._queue = [due for due in self._queue if due.event.id != attempt]
        heapq.heapify(self._queue)
        self._push(self._clock(), AttemptEnded(id=attempt, cancelled=True))

    def close(self) -> None:
        """Drops all attempts and events."""
        self._closed = True
        self._queue.clear()
        self._running.clear()

    def _push(self, at_s: float, event: RunnerEvent) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, _Due(at_s, self._sequence, event))

    def _queue_events(self, request: TrialRequest) -> None:
        """Computes the whole attempt and queues its events, each with its time."""
        started = self._clock()
        truth = self._truth(request)
        series = self._series(request, truth.step_time_s)
        outcome = self._outcome(request, truth, series)

        def at(simulated_s: float) -> float:
            return started + simulated_s * self._time_scale

        self._push(started, AttemptStarted(id=request.id))
        elapsed = SETUP_S
        for first in range(0, outcome.steps, 5):
            last = min(first + 5, outcome.steps)
            elapsed += sum(series.times[first:last])
            self._push(
                at(elapsed),
                StepsReported(
                    id=request.id,
                    first_step=first,
                    step_times_s=series.times[first:last],
                    losses=series.losses[first:last],
                    grad_norms=series.grad_norms[first:last],
                ),
            )
        end = at(elapsed + outcome.silence_s)
        self._push(end, outcome.end)
        for kind in outcome.breaches:
            repeated = kind == "duplicate" or not outcome.steps
            late = StepsReported(
                id=request.id,
                first_step=0,
                step_times_s=series.times[:1],
                losses=series.losses[:1],
                grad_norms=series.grad_norms[:1],
            )
            self._push(end, outcome.end if repeated else late)

    def _truth(self, request: TrialRequest) -> _Truth:
        from autotune.cost import estimate, training_flops_per_token

        predicted = estimate(request.workload, request.config)
        z = np.random.default_rng([self._seed, _digest(request)]).standard_normal(2)
        return _Truth(
            step_time_s=float(predicted.step_time_s) * math.exp(self._bias * z[0]),
            peak_bytes=float(predicted.peak_memory_bytes) * math.exp(self._memory_bias * z[1]),
            flops_per_token=training_flops_per_token(request.workload),
        )

    def _series(self, request: TrialRequest, step_time_s: float) -> _Series:
        measure = request.measure
        total = measure.warmup_steps + measure.max_steps
        times = step_time_s * np.exp(self._noise * self._rng(request, 1).standard_normal(total))
        if self._outlier_every:
            times[self._rng(request, 2).random(total) < 1.0 / self._outlier_every] *= 3.0
        times[: min(1, measure.warmup_steps)] *= 3.0  # the first step allocates and compiles
        start = math.log(request.workload.model.vocab_size)
        steps = np.arange(total)
        return _Series(
            times=tuple(float(t) for t in times),
            losses=tuple(float(x) for x in start * (0.6 + 0.4 * np.exp(-steps / 20.0))),
            grad_norms=tuple(float(x) for x in 1.0 + 2.0 * np.exp(-steps / 5.0)),
        )

    def _outcome(self, request: TrialRequest, truth: _Truth, series: _Series) -> _Outcome:
        kinds_met = [
            fault.kind
            for i, fault in enumerate(self._faults)
            if fault.meets(request, self._draw(request, fault, i))
        ]
        breaches = tuple(kind for kind in kinds_met if FAULTS[kind] is None)
        memory_bytes = request.workload.cluster.gpu.memory_bytes
        warmup = request.measure.warmup_steps
        if truth.peak_bytes > memory_bytes:
            device = "rank" if request.workload.cluster.gpu.is_cpu else "GPU"
            message = (
                f"out of memory: the trial needs {format_bytes(truth.peak_bytes)} on a {device}, "
                f"which has {format_bytes(memory_bytes)}"
            )
            failure = Failure(
                kind=FailureKind.OUT_OF_MEMORY,
                message=message,
                exception="simulated allocator",
                rank=0,
                step=0,
            )
            return _Outcome(
                end=AttemptEnded(id=request.id, failure=failure),
                steps=0,
                silence_s=0.0,
                breaches=breaches,
            )
        kinds = [(kind, FAULTS[kind]) for kind in kinds_met if FAULTS[kind] is not None]
        if kinds:
            name, kind = kinds[0]
            assert kind is not None
            steps = 0 if name in ("invalid", "out_of_memory") else warmup
            silence_s = request.measure.step_timeout_s if name in ("hang", "timeout") else 0.0
            failure = Failure(
                kind=kind,
                message=f"injected fault: {name}",
                exception="simulated",
                log_tail=(f"rank 0: {name}",),
                rank=0,
                step=steps,
            )
            end = AttemptEnded(id=request.id, failure=failure)
            return _Outcome(end=end, steps=steps, silence_s=silence_s, breaches=breaches)
        counted, stopped = _counted_steps(request, series.times[warmup:])
        skipped = int(request.config.precision == "fp16" and warmup == 0)
        config, workload = request.config, request.workload
        measurement = Measurement(
            step_times_s=series.times[warmup : warmup + counted],
            losses=series.losses[warmup : warmup + counted],
            grad_norms=series.grad_norms[warmup : warmup + counted],
            peak_memory_bytes=truth.peak_bytes,
            rank_peak_memory_bytes=(truth.peak_bytes,) * min(config.world_size, 64),
            step_peak_memory_bytes=(truth.peak_bytes,) * counted,
            tokens_per_step=round(config.global_batch_size * workload.tokens_per_sequence),
            num_ranks=config.world_size,
            skipped_steps=skipped,
            gradient_noise_scale=self._gradient_noise,
            setup_s=SETUP_S,
            flops_per_token=truth.flops_per_token,
            peak_flops_per_s=workload.cluster.gpu.peak_flops_per_s.get(config.precision),
            memory_capacity_bytes=memory_bytes,
        )
        end = AttemptEnded(id=request.id, measurement=measurement, stopped=stopped)
        return _Outcome(end=end, steps=warmup + counted, silence_s=0.0, breaches=breaches)

    def _draw(self, request: TrialRequest, fault: SimulatedFault, index: int) -> float:
        """A uniform draw from 0 to 1, for the fault at this index of the list."""
        kind = FAULTS[fault.kind]
        return float(
            self._rng(
                request, 3, index, request.attempt if kind is not None and kind.is_retried else 0
            ).random()
        )

    def _rng(self, request: TrialRequest, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, _digest(request), request.repeat, *stream])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Truth:
    step_time_s: float
    peak_bytes: float
    flops_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    times: tuple[float, ...]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    end: AttemptEnded
    steps: int
    silence_s: float
    breaches: tuple[str, ...]


def _digest(request: TrialRequest) -> int:
    """Hash of the knobs that the estimate uses, so that configs that differ only in neutral knobs
    are equal."""
    return zlib.crc32(SIMULATED_RUNNER.key(request.config).encode())


def _counted_steps(request: TrialRequest, times: Sequence[float]) -> tuple[int, str]:
    """(number of steps counted by the trial's stopping rule, why it stopped early or "")."""
    from autotune.stopping import trial_decision

    for steps in range(1, len(times) + 1):
        verdict = trial_decision(times[:steps], request.measure, request.beat_step_time_s)
        if verdict.stop:
            return steps, verdict.reason if verdict.stopped_early else ""
    return len(times), ""
