"""Trials as rows and observations of the models: log step time, log peak memory, and whether they failed otherwise.

Assumptions: a repeat of a trial on another day differs by a few percent, whatever its own steps say; a measured peak is what the
allocator needs, to a few percent; lost workers say nothing about the config.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from autotune.search.searcher import Problem
from autotune.search.surrogate.corrected_gp import Prior, Rows
from autotune.search.surrogate.observations import Observations
from autotune.spec import ConfigTable, Estimate, FailureKind, Measurement, Trial, TrialStatus, Workload

Array = NDArray[np.float64]

TIME_SDS = {
    "compute": 0.15,
    "tp_comm": 0.5,
    "pp_comm": 0.5,
    "dp_comm": 0.5,
    "cp_comm": 0.5,
    "ep_comm": 0.5,
    "bubble": 0.3,
    "optimizer": 0.3,
    "other": 0.5,
}
"""How far the cost model may be wrong about each cause of time: matmuls reach a known fraction of the peak, networks rarely do."""
MEMORY_SDS = {
    "weights": 0.05,
    "gradients": 0.15,
    "optimizer": 0.1,
    "activations": 0.3,
    "logits": 0.4,
    "framework": 0.5,
}
"""How far it may be wrong about each cause of memory: weights are counted, activations depend on the trainer's kernels."""
COMMON_SD = 0.1
"""Error that all causes share."""
REPEAT_SD = 0.02
"""Relative standard deviation between repeats of a step time or a peak."""
CERTAIN = 1e-9
"""Probabilities nearer to 0 or 1 than this are taken as that near."""
Z90 = 1.645
"""Half-width of the central 90% of a normal, in standard deviations."""


def time_rows(estimate: Estimate, points: Array, workload: int = 0) -> Rows:
    """Rows of the time model for the configs of an estimate."""
    return _rows(estimate.time_parts_s, TIME_SDS, points, workload)


def memory_rows(estimate: Estimate, points: Array, workload: int = 0) -> Rows:
    """Rows of the memory model for the configs of an estimate."""
    return _rows(estimate.memory_parts_bytes, MEMORY_SDS, points, workload)


def time_prior(estimate: Estimate, kinships: Array, likenesses: Array) -> Prior:
    """Before any trial: the causes' spreads, and on top the spread of the estimate's own interval."""
    return _prior(TIME_SDS, estimate.step_time_low_s, estimate.step_time_high_s, kinships, likenesses)


def memory_prior(estimate: Estimate, kinships: Array, likenesses: Array) -> Prior:
    """Before any trial: the causes' spreads, and on top the spread of the estimate's own interval."""
    low, high = estimate.peak_memory_low_bytes, estimate.peak_memory_high_bytes
    return _prior(MEMORY_SDS, low, high, kinships, likenesses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One trial with what the models want to know of it."""

    trial: Trial
    workload: int
    """0 for the one that is searched, else which of the history"""
    capacity_bytes: float
    """memory of one GPU"""
    estimate: Estimate
    """for this config, arrays of shape (1,)"""
    point: Array
    """coordinates, shape (1, d)"""

    @property
    def has_time(self) -> bool:
        """Whether the time model learns from it."""
        return self.trial.is_measured

    @property
    def has_memory(self) -> bool:
        """Whether the memory model learns from it: measured, or out of memory."""
        return self.trial.is_measured or self.ran_out

    @property
    def ran_out(self) -> bool:
        """Whether it ran out of memory."""
        return self.trial.failure is not None and self.trial.failure.kind is FailureKind.OUT_OF_MEMORY

    @property
    def failed_otherwise(self) -> bool:
        """Whether it failed for a reason that lies in the config and is not memory."""
        failure = self.trial.failure
        return (
            self.trial.status is TrialStatus.FAILED
            and failure is not None
            and failure.kind not in (FailureKind.OUT_OF_MEMORY, FailureKind.WORKER_LOST)
        )


def time_sites(observed: Sequence[Observed]) -> Observations:
    """Log step times of measured trials, each with its own noise."""
    measurements = [_measurement(o) for o in observed]
    return Observations(
        values=np.array([math.log(m.step_time_s) for m in measurements]),
        sides=np.zeros(len(measurements)),
        noise=np.array([math.hypot(REPEAT_SD, m.step_time_spread / len(m.step_times_s) ** 0.5) for m in measurements]),
    )


def memory_sites(observed: Sequence[Observed]) -> Observations:
    """Log peaks where they are known, else on which side of their limit they are."""
    values, sides = [], []
    for o in observed:
        peak = o.trial.measurement.peak_memory_bytes if o.trial.is_measured and o.trial.measurement else None
        values.append(math.log(peak) if peak else float(log_limits(o.estimate, o.capacity_bytes)[0]))
        sides.append(1.0 if o.ran_out else 0.0 if peak else -1.0)
    return Observations(values=np.array(values), sides=np.array(sides), noise=np.full(len(values), REPEAT_SD))


def log_limits(estimate: Estimate, capacity_bytes: float) -> Array:
    """Log of the peak above which each config would run out of memory, shape (N,).

    A part of what the allocator reserves at the peak need not fit (`autotune.cost.memory`), and a part of the memory is not the allocator's. The
    estimate counts both in its probability of running out: P = Phi(log(peak / limit) / sigma), solved for the limit.
    """
    peak, low, high = (
        np.log(np.atleast_1d(np.asarray(value, dtype=np.float64)))
        for value in (estimate.peak_memory_bytes, estimate.peak_memory_low_bytes, estimate.peak_memory_high_bytes)
    )
    z = ndtri(np.clip(np.atleast_1d(np.asarray(estimate.oom_probability)), CERTAIN, 1.0 - CERTAIN))
    limit = peak - z * (high - low) / (2 * Z90)
    return np.asarray(np.where(z > 0, np.minimum(limit, math.log(capacity_bytes)), limit))


def observe(problem: Problem, workload: Workload, trial: Trial, *, number: int) -> Observed:
    """The trial of a config that need not be in the space, with the cost model's estimate for it."""
    from autotune.cost import estimate
    from autotune.space import SearchSpace

    same = workload.cluster.gpu.name == problem.space.workload.cluster.gpu.name
    same = same and workload.trainer == problem.space.workload.trainer
    return Observed(
        trial=trial,
        workload=number,
        capacity_bytes=workload.cluster.gpu.memory_bytes,
        estimate=estimate(workload, ConfigTable.of([trial.config]), calibration=problem.calibration if same else None),
        point=SearchSpace.of(workload, [trial.config]).coordinates(),
    )


def _measurement(observed: Observed) -> Measurement:
    measurement = observed.trial.measurement
    if measurement is None:
        raise ValueError(f"trial {observed.trial.number} has no measurement")
    return measurement


def _rows(parts: object, names: dict[str, float], points: Array, workload: int) -> Rows:
    columns = [np.atleast_1d(np.asarray(getattr(parts, name), dtype=np.float64)) for name in names]
    return Rows(
        parts=np.stack(np.broadcast_arrays(*columns), axis=1),
        points=points,
        workloads=np.full(len(points), workload, dtype=np.intp),
    )


def _prior(sds: dict[str, float], low: object, high: object, kinships: Array, likenesses: Array) -> Prior:
    spread = np.log(np.atleast_1d(np.asarray(high)) / np.atleast_1d(np.asarray(low))) / (2 * Z90)
    return Prior(
        factor_sds=np.array(list(sds.values())),
        common_sd=COMMON_SD,
        residual_sd=float(np.median(spread)),
        kinships=kinships,
        likenesses=likenesses,
    )
