"""A measurement: the observed steps of one attempt, and the figures derived from them.

A loss comparison compares a trial's loss with the loss of other configs, which trained on other
batches, after the same number of tokens. The comparison is made once, when the trial is scored,
with the trials that had ended by then. It is stored with the measurement, so later trials never
change it. The statistics are in `autotune.reward.equal_tokens`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from autotune.spec.plain import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Plain):
    """The measurement of one attempt. Series have one entry per optimizer step after warm-up."""

    step_times_s: tuple[float, ...]
    """duration of each step in seconds on the slowest rank, device-synchronized"""
    peak_memory_bytes: float | None = None
    """highest memory peak of any rank; None if the trainer does not report memory"""
    tokens_per_step: int = 0
    """global_batch_size * seq_len"""
    num_ranks: int = 1
    """ranks in use"""
    losses: tuple[float, ...] = ()
    """training loss, mean over all ranks, nats per token; NaN for a step without a loss in the
    program's log"""
    grad_norms: tuple[float, ...] = ()
    """global gradient norm before clipping; NaN for a step without a norm in the program's log"""
    nonfinite_steps: int = 0
    """steps with a non-finite loss or gradient, except steps that loss scaling skipped"""
    skipped_steps: int = 0
    """steps that dynamic loss scaling skipped"""
    gradient_noise_scale: float | None = None
    """simple noise scale in sequences (McCandlish et al. 2018, eq. 2.8), if estimated; infinite if
    the gradient is indistinguishable from noise"""
    gradient_noise_interval: tuple[float, float] | None = None
    """90% interval of the noise scale, in sequences"""
    setup_s: float = 0.0
    """time before the first step, in seconds, to start processes and groups and to build the
    model"""
    flops_per_token: float | None = None
    """model FLOPs per token, without recomputation, if known"""
    peak_flops_per_s: float | None = None
    """datasheet peak of one rank in the config's precision, if known"""
    memory_capacity_bytes: float | None = None
    """memory of one rank, if known"""
    rank_peak_memory_bytes: tuple[float, ...] = ()
    """memory peak of each rank"""
    step_peak_memory_bytes: tuple[float, ...] = ()
    """highest memory peak of any rank from the start of the trial to the end of each step, if
    available"""
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    """profiled step time by cause, in seconds, if a profile was requested"""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """time of each phase of a post-training step, in seconds, for trials that run only the
    trainer's phases: `log_prob`, `reference` and `update` are measured, the other phases come from
    the spec or are predicted from it; empty for all other trials"""
    utilization: Mapping[str, float] = field(default_factory=dict)
    """other readings by name: power_watts, sm, memory_bandwidth, reserved_memory_bytes,
    alloc_retries, temperature_c, throttled, ..."""
    reference_losses: tuple[float, ...] = ()
    """losses of an fp32 reference on the same data, if one was measured"""
    reference_grad_norms: tuple[float, ...] = ()
    """gradient norms of the fp32 reference, or else of the baseline, on the same data; spikes that
    also occur here are caused by the data"""
    loss_comparison: LossComparison | None = None
    """the loss at the same number of tokens compared with other configs, if configs do not train on
    the same data"""
    time_from: str = ""
    """source of the step times: `log` (times that the program printed), `rate` (printed rates) or
    `arrival` (the times at which step lines arrived); empty if the worker's own clock timed the
    steps"""
    time_resolution_s: float = 0.0
    """the resolution of step times; 0 if unknown"""
    steps_together: int = 1
    """largest number of steps whose lines arrived at once, for example because output was not
    flushed; each of these steps gets the mean time. 1 if every step has its own time"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """conditions that may affect the speed: versions of torch, CUDA, driver, NCCL, Python, kernel
    and trainer, the program's commit, its script by its contents, the GPU's clocks and power
    limit"""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """observations of each rank, as plain values of `autotune.diagnosis.Evidence`; empty if not
    observed"""
    files: Mapping[str, str] = field(default_factory=dict)
    """hashes of the program's own files by path: the modules that it imported, and the files that
    its command names. Large files have their size and modification time instead. Empty if not
    observed"""
    environment: Mapping[str, str] | None = None
    """inherited environment variables that may affect the speed and that neither the spec nor
    autotune sets, such as OMP_NUM_THREADS; None if unknown"""
    remarks: tuple[str, ...] = ()
    """conditions that limit what these figures mean, as text: sequence lengths or batches that
    differ from the spec, evaluation or checkpoints within the step time, ranks with different
    batches"""
    allocator: str = ""
    """settings of the GPU allocator (PYTORCH_ALLOC_CONF); empty if they are the defaults or
    unknown"""

    def __post_init__(self) -> None:
        for name in (
            "step_times_s",
            "losses",
            "grad_norms",
            "rank_peak_memory_bytes",
            "step_peak_memory_bytes",
            "reference_losses",
            "reference_grad_norms",
            "remarks",
        ):
            value = getattr(self, name)
            if not isinstance(value, tuple):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.loss_comparison, Mapping):
            object.__setattr__(self, "loss_comparison", LossComparison(**self.loss_comparison))

    @property
    def step_time_s(self) -> float:
        """Median step time in seconds; nan if there are no steps."""
        return float(statistics.median(self.step_times_s)) if self.step_times_s else math.nan

    @property
    def step_time_spread(self) -> float:
        """Robust relative spread of the step time: 1.4826 * median absolute deviation / median,
        combined with the rounding of the times (a uniform error over the resolution, whose standard
        deviation is resolution / sqrt(12))."""
        if len(self.step_times_s) < 2:
            return 0.0
        times = np.asarray(self.step_times_s)
        middle = float(np.median(times))
        deviation = 1.4826 * float(np.median(np.abs(times - middle)))
        return (
            math.hypot(deviation, self.time_resolution_s / math.sqrt(12)) / middle
            if middle > 0
            else 0.0
        )

    @property
    def mean_step_time_s(self) -> float:
        """Mean step time in seconds, including the slow tail; nan if there are no steps."""
        return (
            math.fsum(self.step_times_s) / len(self.step_times_s) if self.step_times_s else math.nan
        )

    @property
    def skipped_share(self) -> float:
        """Share of the steps that dynamic loss scaling skipped."""
        return min(1.0, self.skipped_steps / max(len(self.step_times_s), len(self.losses), 1))

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second for the whole job: the tokens of steps that were not skipped, divided
        by the time of all steps."""
        mean = self.mean_step_time_s
        return self.tokens_per_step * (1.0 - self.skipped_share) / mean if mean > 0 else math.nan

    @property
    def median_tokens_per_s(self) -> float:
        """Tokens per second for the whole job at the median of all steps, including skipped steps:
        the rate of an undisturbed step."""
        return self.tokens_per_step / self.step_time_s if self.step_time_s > 0 else math.nan

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second per rank in use, counting only the tokens of steps that were not
        skipped."""
        return self.tokens_per_s / self.num_ranks

    @property
    def occupied_memory_bytes(self) -> float | None:
        """Peak memory used on a GPU by the rank with the highest peak: the memory reserved by the
        allocator if known, otherwise the allocated memory."""
        if self.peak_memory_bytes is None:
            return None
        return max(self.peak_memory_bytes, self.utilization.get(RESERVED, 0.0))

    @property
    def is_throttled(self) -> bool:
        """Whether heat or the power brake lowered a GPU's clocks during the measurement."""
        return self.utilization.get("throttled", 0.0) > 0

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (PaLM, arXiv:2204.02311, appendix B): tokens/s * FLOPs per token
        / peak; None if unknown."""
        if self.flops_per_token is None or not self.peak_flops_per_s:
            return None
        return self.tokens_per_s_per_gpu * self.flops_per_token / self.peak_flops_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, including derived values."""
        stored = {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}
        return {
            **stored,
            "step_time_s": _plain(self.step_time_s),
            "mean_step_time_s": _plain(self.mean_step_time_s),
            "step_time_spread": self.step_time_spread,
            "tokens_per_s": _plain(self.tokens_per_s),
            "median_tokens_per_s": _plain(self.median_tokens_per_s),
            "tokens_per_s_per_gpu": _plain(self.tokens_per_s_per_gpu),
            "mfu": _plain(self.mfu),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """Return the measurement from the output of `to_dict`; derived values are recomputed."""
        return cls(**{k: _restored(v) for k, v in values.items() if k in cls.__dataclass_fields__})


RESERVED = "reserved_memory_bytes"
"""the key in `Measurement.utilization` for the memory reserved by the allocator"""


def at_highest_peak(measurement: Measurement, runs: Iterable[Measurement]) -> Measurement:
    """Return the measurement with the highest peaks of allocated and reserved memory of itself and
    other runs of its config."""
    all_runs = (measurement, *runs)
    peaks = [m.peak_memory_bytes for m in all_runs if m.peak_memory_bytes is not None]
    reserved = [m.utilization[RESERVED] for m in all_runs if RESERVED in m.utilization]
    return replace(
        measurement,
        peak_memory_bytes=max(peaks, default=None),
        utilization={
            **measurement.utilization,
            **({RESERVED: max(reserved)} if reserved else {}),
        },
    )


def _plain(value: Any) -> Any:
    """Return a field as plain JSON values: null for NaN, a mapping for infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"nonfinite": str(value)} if not math.isnan(value) else None
    if isinstance(value, LossComparison):
        return asdict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return dict(value) if isinstance(value, Mapping) else value


_NUMBERS = {float, int}
_SCALARS = {float, int, str, bool, type(None)}


def _restored(value: Any) -> Any:
    """Return a field from the output of `_plain`."""
    if type(value) in _SCALARS:  # first, because it is most values, and faster than isinstance
        return value
    if isinstance(value, Mapping):
        return float(value["nonfinite"]) if set(value) == {"nonfinite"} else dict(value)
    if isinstance(value, list):
        # true for most series, and several times faster than restoring each number
        if set(map(type, value)) <= _NUMBERS:
            return tuple(value)
        return tuple(math.nan if v is None else _restored(v) for v in value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """The loss compared with other configs at the same number of tokens."""

    excess: float
    """loss of this trial minus the others' loss; negative if this trial is better"""
    noise: float
    """how far a healthy trial's loss may exceed the others' loss by chance, in the unit of the
    loss, >= 0"""
    loss: float
    """loss of the other configs at the same point, > 0"""
    tokens: int
    """number of tokens on which the other configs had trained at this point, including warm-up"""
    curves: int
    """number of other trials in the comparison, >= 1"""

    @property
    def unexplained(self) -> float:
        """The part of the excess that noise does not explain, relative to the other configs' loss;
        >= 0."""
        return max(0.0, self.excess - self.noise) / self.loss
