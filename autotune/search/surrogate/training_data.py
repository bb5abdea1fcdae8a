"""Converts trials to training data of the surrogate: log step time, log peak memory, and other
failures.

Assumptions: a repeat of a trial on another day differs by a few percent, independently of the
spread of its steps; a measured peak is what the allocator needs, within a few percent; a lost
worker is not caused by the config.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from autotune.cost.learn.uncertainty import config_sigma, memory_log_sigma
from autotune.cost.memory.constants import memory_source
from autotune.cost.traits import loop_of
from autotune.search.searcher import Problem
from autotune.search.surrogate.corrected_gp import Prior, Rows
from autotune.search.surrogate.observations import Observations
from autotune.spec import (
    ConfigTable,
    Estimate,
    FailureKind,
    Measurement,
    ParallelConfig,
    Trial,
    TrialStatus,
    Workload,
)

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
"""prior standard deviation of the log factor of each part of the step time: small for matmuls,
whose achieved fraction of the peak is known, large for networks"""
MEMORY_SDS = {
    "weights": 0.05,
    "gradients": 0.15,
    "optimizer": 0.1,
    "activations": 0.3,
    "logits": 0.4,
    "framework": 0.5,
}
"""prior standard deviation of the log factor of each part of the memory: small for weights, which
are counted exactly; large for activations, which depend on the trainer's kernels"""
COMMON_SD = 0.1
"""standard deviation of the error that all parts share, if the estimate does not state one"""
OWN_MEMORY_ERROR_SD = 0.07
"""upper limit of the standard deviation of errors of log peak memory that are independent between
the configs of a program: the median over 19 published sources, most of whose errors are one factor
for all rows (research/measurements.md)"""
OWN_TIME_SD, OWN_MEMORY_SD = 0.15, 0.05
"""standard deviation of the effect of one of the study's own knobs on log step time and on log peak
memory"""
REPEAT_SD = 0.02
"""relative standard deviation between repeats of a step time or a peak"""
CERTAIN = 1e-9
"""probabilities are clipped to this distance from 0 and 1"""
Z90 = 1.645
"""half-width of a normal's central 90% interval, in standard deviations"""


def time_rows(estimate: Estimate, points: Array, workload: int = 0) -> Rows:
    """Rows of the time model for the configs of an estimate."""
    return _rows(estimate.time_parts_s, TIME_SDS, points, workload)


def memory_rows(estimate: Estimate, points: Array, workload: int = 0) -> Rows:
    """Rows of the memory model for the configs of an estimate."""
    return _rows(estimate.memory_parts_bytes, MEMORY_SDS, points, workload)


def time_prior(
    estimate: Estimate,
    transfer_weights: Array,
    residual_weights: Array,
    *,
    measured: bool,
    own: int = 0,
) -> Prior:
    """Prior of the time model: `TIME_SDS` for the factors, the level's spread for the error that all
    parts share, and the width of the estimate's interval without the level for the residual.

    Until something of this workload is `measured`, candidates are only compared with predictions,
    which have the same error of the level, so that error is zero here."""
    level_sd = float(np.median(np.asarray(estimate.level_sigma)))
    return Prior(
        factor_sds=np.array(list(TIME_SDS.values())),
        common_sd=(level_sd or COMMON_SD) if measured else 0.0,
        residual_sd=float(np.median(config_sigma(estimate))),
        transfer_weights=transfer_weights,
        residual_weights=residual_weights,
        own_sd=OWN_TIME_SD,
        own=own,
    )


def memory_prior(
    estimate: Estimate,
    transfer_weights: Array,
    residual_weights: Array,
    *,
    workload: Workload,
    own: int = 0,
) -> Prior:
    """Prior of the memory model: `MEMORY_SDS` for the factors, and the width of the estimate's
    interval for the rest. If the trainer's peaks were fitted, that error is independent between
    configs. Otherwise all configs share the part above `OWN_MEMORY_ERROR_SD`, so that one measured
    peak determines most of the others."""
    spread = float(np.median(memory_log_sigma(estimate)))
    is_fitted = "memory_sigma" in memory_source(workload.cluster.gpu.name, loop_of(workload)).fitted
    residual_sd = spread if is_fitted else min(spread, OWN_MEMORY_ERROR_SD)
    return Prior(
        factor_sds=np.array(list(MEMORY_SDS.values())),
        common_sd=math.sqrt(COMMON_SD**2 + spread**2 - residual_sd**2),
        residual_sd=residual_sd,
        transfer_weights=transfer_weights,
        residual_weights=residual_weights,
        own_sd=OWN_MEMORY_SD,
        own=own,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPoint:
    """One trial with its inputs for the models."""

    trial: Trial
    """measured or failed"""
    workload: int
    """0 for the searched workload, else the number of the history's workload"""
    capacity_bytes: float
    """memory of one GPU"""
    estimate: Estimate
    """the cost model's estimate of its config, arrays of shape (1,)"""
    point: Array
    """coordinates, shape (1, d)"""

    @property
    def has_time(self) -> bool:
        """Whether the time model learns from it: measured."""
        return self.trial.is_measured

    @property
    def has_memory(self) -> bool:
        """Whether the memory model learns from it: measured, or out of memory."""
        return self.trial.is_measured or self.is_out_of_memory

    @property
    def is_out_of_memory(self) -> bool:
        """Whether it ran out of memory."""
        return (
            self.trial.failure is not None and self.trial.failure.kind is FailureKind.OUT_OF_MEMORY
        )

    @property
    def failed_otherwise(self) -> bool:
        """Whether it failed because of the config, but not out of memory."""
        failure = self.trial.failure
        return (
            self.trial.status is TrialStatus.FAILED
            and failure is not None
            and failure.kind not in (FailureKind.OUT_OF_MEMORY, FailureKind.WORKER_LOST)
        )


def time_observations(data: Sequence[DataPoint]) -> Observations:
    """Log step times of measured trials, each with the noise of its steps."""
    measurements = [_measurement(point) for point in data]
    return Observations(
        values=np.array([math.log(m.step_time_s) for m in measurements]),
        sides=np.zeros(len(measurements)),
        noise=np.array(
            [
                math.hypot(REPEAT_SD, m.step_time_spread / len(m.step_times_s) ** 0.5)
                for m in measurements
            ]
        ),
    )


def memory_observations(data: Sequence[DataPoint]) -> Observations:
    """Log peaks if measured; otherwise observations censored at the limit: above it for trials that
    ran out of memory, below it for trials that ran."""
    values, sides = [], []
    for point in data:
        measurement = point.trial.measurement if point.trial.is_measured else None
        peak = measurement.peak_memory_bytes if measurement else None
        values.append(
            math.log(peak) if peak else float(log_limits(point.estimate, point.capacity_bytes)[0])
        )
        if point.is_out_of_memory:
            sides.append(1.0)
        else:
            sides.append(0.0 if peak else -1.0)
    return Observations(
        values=np.array(values), sides=np.array(sides), noise=np.full(len(values), REPEAT_SD)
    )


def log_limits(estimate: Estimate, capacity_bytes: float) -> Array:
    """Log of the peak above which each config would run out of memory, shape (N,).

    The limit is not the GPU's memory: the allocator can free a part of what it reserves at the peak
    (`autotune.cost.memory.peak`), and a part of the memory is not available to it. The estimate's
    probability of running out of memory includes both, P = Phi(log(peak / limit) / sigma), so it is
    solved for the limit.
    """
    peak = np.log(np.atleast_1d(np.asarray(estimate.peak_memory_bytes, dtype=np.float64)))
    z = ndtri(np.clip(np.atleast_1d(np.asarray(estimate.oom_probability)), CERTAIN, 1.0 - CERTAIN))
    limit = peak - z * memory_log_sigma(estimate)
    return np.asarray(np.where(z > 0, np.minimum(limit, math.log(capacity_bytes)), limit))


def data_point(problem: Problem, workload: Workload, trial: Trial, *, number: int) -> DataPoint:
    """The data point of a trial, whose config need not be in the space. `number`: of its
    workload."""
    predicted, point = predicted_trainings(problem, workload, [trial.config])
    return DataPoint(
        trial=trial,
        workload=number,
        capacity_bytes=workload.cluster.gpu.memory_bytes,
        estimate=predicted,
        point=point,
    )


def predicted_trainings(
    problem: Problem, workload: Workload, configs: Sequence[ParallelConfig]
) -> tuple[Estimate, Array]:
    """The estimates of n configs of any workload, arrays of shape (n,), and their coordinates in the
    problem's space, shape (n, d)."""
    from autotune.cost import estimate

    same = workload.cluster.gpu.name == problem.space.workload.cluster.gpu.name
    same = same and workload.trainer == problem.space.workload.trainer
    predicted = estimate(
        workload, ConfigTable.of(list(configs)), calibration=problem.calibration if same else None
    )
    return predicted, np.concatenate([problem.space.coordinates_of(config) for config in configs])


def _measurement(point: DataPoint) -> Measurement:
    measurement = point.trial.measurement
    if measurement is None:
        raise ValueError(f"trial {point.trial.number} has no measurement")
    return measurement


def _rows(parts: object, names: dict[str, float], points: Array, workload: int) -> Rows:
    columns = [np.atleast_1d(np.asarray(getattr(parts, name), dtype=np.float64)) for name in names]
    return Rows(
        parts=np.stack(np.broadcast_arrays(*columns), axis=1),
        points=points,
        workloads=np.full(len(points), workload, dtype=np.intp),
    )
