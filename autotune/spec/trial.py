"""A trial: one configuration tried in a study, with its measurement or its failure.

    PENDING -> RUNNING -> COMPLETED     measured to the requested precision
                          STOPPED       measured, and ended early because it can no longer win
                          FAILED        with a `Failure`
                          CANCELLED     nothing was learnt; the config may be tried again
    INFEASIBLE                          terminal without running

Terminal states never change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import numpy as np

from autotune.spec.config import ParallelConfig
from autotune.spec.estimate import Estimate
from autotune.spec.loss_comparison import LossComparison


class TrialStatus(StrEnum):
    """The state of a trial."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INFEASIBLE = "INFEASIBLE"

    @property
    def is_terminal(self) -> bool:
        """Whether this state never changes."""
        return self not in (TrialStatus.PENDING, TrialStatus.RUNNING)


class FailureKind(StrEnum):
    """Why a trial failed. Only WORKER_LOST is retried; all others are final for that config."""

    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DIVERGED = "DIVERGED"
    HANG = "HANG"
    TIMEOUT = "TIMEOUT"
    INVALID = "INVALID"
    METRICS_MISSING = "METRICS_MISSING"
    WORKER_LOST = "WORKER_LOST"
    ERROR = "ERROR"

    @property
    def is_retried(self) -> bool:
        """Whether another attempt may succeed, because the machine and not the config caused the failure."""
        return self is FailureKind.WORKER_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an attempt failed, with the evidence."""

    kind: FailureKind
    """the kind of failure"""
    message: str
    """what happened, in one sentence"""
    exception: str = ""
    """type and text of the exception, or the signal"""
    log_tail: tuple[str, ...] = ()
    """last log lines of the rank that failed first"""
    rank: int | None = None
    """the rank that failed first, where one did"""
    step: int | None = None
    """the optimizer step in which it failed, counted from 0 with warm-up"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "kind": str(self.kind),
            "message": self.message,
            "exception": self.exception,
            "log_tail": list(self.log_tail),
            "rank": self.rank,
            "step": self.step,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Failure:
        """The failure of `to_dict`'s values."""
        return cls(**{**values, "kind": FailureKind(values["kind"]), "log_tail": tuple(values.get("log_tail", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The measurement of one attempt. Series hold one entry per optimizer step after warm-up."""

    step_times_s: tuple[float, ...]
    """seconds of each step, of the slowest rank, device-synchronized"""
    peak_memory_bytes: float | None = None
    """peak of the fullest rank; None if the trainer does not report it"""
    tokens_per_step: int = 0
    """global_batch_size * seq_len"""
    num_ranks: int = 1
    """ranks in use"""
    losses: tuple[float, ...] = ()
    """training loss, mean over all ranks, nats per token; NaN for a step whose loss a program's log does not say"""
    grad_norms: tuple[float, ...] = ()
    """global gradient norm before clipping; NaN as for losses"""
    nonfinite_steps: int = 0
    """steps with a loss or gradient that was not finite, except those that loss scaling skipped"""
    skipped_steps: int = 0
    """steps that dynamic loss scaling skipped"""
    gradient_noise_scale: float | None = None
    """simple noise scale in sequences (McCandlish et al. 2018, eq. 2.8), if it was estimated; infinite if the gradient is indistinguishable from noise"""
    gradient_noise_interval: tuple[float, float] | None = None
    """90% interval of the noise scale, sequences"""
    setup_s: float = 0.0
    """seconds before the first step: processes, groups, model"""
    flops_per_token: float | None = None
    """model FLOPs per token, without recomputation, where known"""
    peak_flops_per_s: float | None = None
    """datasheet peak of one rank in the config's precision, where known"""
    memory_capacity_bytes: float | None = None
    """memory of one rank, where known"""
    rank_peak_memory_bytes: tuple[float, ...] = ()
    """peak of each rank"""
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    """profiled seconds of a step by cause, if a profile was requested"""
    utilization: Mapping[str, float] = field(default_factory=dict)
    """other readings by name: power_watts, sm, memory_bandwidth, ..."""
    reference_losses: tuple[float, ...] = ()
    """losses of an fp32 reference on the same data, if one was measured"""
    loss_comparison: LossComparison | None = None
    """the loss at equal tokens against other configs', where they do not see the same data"""
    time_from: str = ""
    """what the step times were taken from: `log` (a time that the program printed), `rate` (a printed rate) or `arrival` (of its step lines); empty: the
    worker's own clock"""
    time_resolution_s: float = 0.0
    """the smallest difference between two step times that it can tell; 0 where it is not known"""

    def __post_init__(self) -> None:
        for name in ("step_times_s", "losses", "grad_norms", "rank_peak_memory_bytes", "reference_losses"):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.loss_comparison, Mapping):
            object.__setattr__(self, "loss_comparison", LossComparison(**self.loss_comparison))

    @property
    def step_time_s(self) -> float:
        """Median seconds of a step; nan without steps."""
        return float(np.median(self.step_times_s)) if self.step_times_s else math.nan

    @property
    def step_time_spread(self) -> float:
        """Robust relative spread of the step time: 1.4826 * median absolute deviation / median, with the rounding of the times (a uniform
        error over the resolution, whose standard deviation is resolution / sqrt(12))."""
        if len(self.step_times_s) < 2:
            return 0.0
        times = np.asarray(self.step_times_s)
        middle = float(np.median(times))
        deviation = 1.4826 * float(np.median(np.abs(times - middle)))
        return math.hypot(deviation, self.time_resolution_s / math.sqrt(12)) / middle if middle > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole job, at the median step."""
        return self.tokens_per_step / self.step_time_s if self.step_times_s and self.step_time_s > 0 else math.nan

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and rank in use, at the median step."""
        return self.tokens_per_s / self.num_ranks

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (PaLM, arXiv:2204.02311, appendix B): tokens/s * FLOPs per token / peak; None where unknown."""
        if self.flops_per_token is None or not self.peak_flops_per_s:
            return None
        return self.tokens_per_s_per_gpu * self.flops_per_token / self.peak_flops_per_s

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, derived ones included."""
        stored = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}
        return {
            **stored,
            "step_time_s": _plain(self.step_time_s),
            "step_time_spread": self.step_time_spread,
            "tokens_per_s": _plain(self.tokens_per_s),
            "tokens_per_s_per_gpu": _plain(self.tokens_per_s_per_gpu),
            "mfu": _plain(self.mfu),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """The measurement of `to_dict`'s values; derived ones are recomputed."""
        return cls(**{k: _back(v) for k, v in values.items() if k in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The reward of a trial: dimensionless, higher is better. Only differences between trials of the same study are meaningful."""

    total: float
    """what the study maximizes"""
    throughput: float
    """log of the throughput (or goodput, or tokens per unit of cost) relative to the baseline; 0 is the baseline"""
    stability: float
    """0 to 1"""
    parts: Mapping[str, float] = field(default_factory=dict)
    """the parts of stability by name, each 0 to 1, and other terms that were used"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "total": self.total,
            "throughput": self.throughput,
            "stability": self.stability,
            "parts": dict(self.parts),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reward:
        """The reward of `to_dict`'s values."""
        return cls(**values)


class TrialPurpose(StrEnum):
    """Why a trial is run."""

    BASELINE = "baseline"
    """the default config, measured first; rewards are relative to it"""
    REFERENCE = "reference"
    """the baseline in fp32, if the baseline itself is not fp32; losses of other precisions are compared with its losses"""
    SEARCH = "search"
    """proposed by the searcher"""
    FINAL = "final"
    """a finalist or the baseline, measured again in turn before a winner is named"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A config in a study, with its state and outcome."""

    config: ParallelConfig
    """the config that is tried"""
    number: int = 0
    """number within the study, from 0"""
    study: str = ""
    """id of the study"""
    seed: int = 0
    """seed of weights and data"""
    status: TrialStatus = TrialStatus.PENDING
    """its state"""
    purpose: TrialPurpose = TrialPurpose.SEARCH
    """why it is run"""
    attempts: int = 0
    """launches so far"""
    estimate: Estimate | None = None
    """the prediction at the time it was proposed"""
    measurement: Measurement | None = None
    """the measurement; for a failed trial, as far as it got"""
    reward: Reward | None = None
    """its reward, if it was measured"""
    failure: Failure | None = None
    """how it failed, if it did"""
    reason: str = ""
    """why it was proposed, or why it was stopped, in words"""
    created_at: datetime | None = None
    """UTC"""
    started_at: datetime | None = None
    """UTC, of the first attempt"""
    ended_at: datetime | None = None
    """UTC"""

    @property
    def is_measured(self) -> bool:
        """Whether it ended with a valid step time."""
        return (
            self.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED)
            and self.measurement is not None
            and bool(self.measurement.step_times_s)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "study": self.study,
            "number": self.number,
            "config": self.config.to_dict(),
            "seed": self.seed,
            "status": str(self.status),
            "purpose": str(self.purpose),
            "attempts": self.attempts,
            "estimate": self.estimate.to_dict() if self.estimate else None,
            "measurement": self.measurement.to_dict() if self.measurement else None,
            "reward": self.reward.to_dict() if self.reward else None,
            "failure": self.failure.to_dict() if self.failure else None,
            "reason": self.reason,
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "started_at": self.started_at.isoformat() if self.started_at else None,
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trial:
        """The trial of `to_dict`'s values."""
        v = dict(values)
        v["config"] = ParallelConfig.from_dict(v["config"])
        v["status"] = TrialStatus(v["status"])
        v["purpose"] = TrialPurpose(v.get("purpose", "search"))
        readers: dict[str, Any] = {
            "estimate": Estimate.from_dict,
            "measurement": Measurement.from_dict,
            "reward": Reward.from_dict,
            "failure": Failure.from_dict,
            "created_at": datetime.fromisoformat,
            "started_at": datetime.fromisoformat,
            "ended_at": datetime.fromisoformat,
        }
        for name, read in readers.items():
            v[name] = read(v[name]) if v.get(name) is not None else None
        return cls(**v)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"nonfinite": str(value)} if not math.isnan(value) else None
    if isinstance(value, LossComparison):
        return asdict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return dict(value) if isinstance(value, Mapping) else value


def _back(value: Any) -> Any:
    if isinstance(value, Mapping):
        return float(value["nonfinite"]) if set(value) == {"nonfinite"} else dict(value)
    if isinstance(value, list):
        return tuple(math.nan if v is None else _back(v) for v in value)
    return value
