"""The predicted time and memory of a config. Every field is a float for one config, or an array of
shape (N,) for N configs.

Times are for one optimizer step on the slowest pipeline stage. The time parts add up to
`step_time_s`, the memory parts to `peak_memory_bytes`. Only *exposed*
communication counts: communication that overlaps with compute takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.spec.plain import Plain

Number = float | NDArray[np.float64]


AT_THE_LIMIT = (0.4, 0.6)
"""limits of P(OOM) between which the number of bytes does not decide whether a config fits, because
the allocator's blocks and the device's own buffers matter"""


def risk_text(oom_probability: float) -> str:
    """Return the risk of running out of memory as text: a percentage, and whether the config is at
    the limit."""
    low, high = AT_THE_LIMIT
    return f"{oom_probability:.0%}" + (" (at the limit)" if low <= oom_probability <= high else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts(Plain):
    """Fields that add up to a total."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers (or lists) by name."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @property
    def total(self) -> Any:
        """The sum of all parts."""
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts(_Parts):
    """Time in one optimizer step by cause, in seconds; the parts add up to the step time."""

    compute: Number
    """kernels in forward pass, backward pass and recomputation, with their launch overhead"""
    tp_comm: Number
    """exposed tensor- and sequence-parallel collectives"""
    pp_comm: Number
    """exposed pipeline sends and receives"""
    dp_comm: Number
    """exposed gradient reduction, ZeRO and FSDP traffic"""
    cp_comm: Number
    """exposed context-parallel exchange"""
    ep_comm: Number
    """exposed expert-parallel all-to-all"""
    bubble: Number
    """idle time while the pipeline fills and drains, and at uneven stages"""
    optimizer: Number
    """the optimizer's update"""
    other: Number
    """host overhead per step, stragglers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts(_Parts):
    """Peak memory by cause on the rank with the highest peak, in bytes; the parts add up to the
    peak."""

    weights: Number
    """weights in the compute precision"""
    gradients: Number
    """gradient buffers"""
    optimizer: Number
    """master weights and moments"""
    activations: Number
    """tensors saved for the backward pass"""
    logits: Number
    """output of the last stage and its loss"""
    framework: Number
    """communication buffers, workspace, allocator overhead"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseParts(_Parts):
    """Time in one post-training step by phase, in seconds on the trainer's clock; the phases add up
    to the step time."""

    generation: Number
    """generating responses, at the speed in the spec, while the trainer waits"""
    reward: Number
    """computing rewards, for the time in the spec"""
    log_prob: Number
    """computing log-probabilities of the policy"""
    reference: Number
    """computing log-probabilities with the reference model"""
    values: Number
    """computing values with the critic"""
    update: Number
    """optimizer steps of the policy and the critic"""
    refit: Number
    """sending weights to the generation engine"""
    waiting: Number
    """time that the trainer waits for responses that are generated in parallel"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Plain):
    """Prediction for one config (floats) or for N configs (arrays)."""

    step_time_s: Number
    """median step time, s"""
    step_time_low_s: Number
    """lower end of the 90% interval, s"""
    step_time_high_s: Number
    """upper end of the 90% interval, s"""
    time_parts_s: TimeParts
    """step time by cause"""
    tokens_per_s: Number
    """tokens per second of the whole job"""
    tokens_per_s_per_gpu: Number
    """tokens per second per rank in use"""
    mfu: Number
    """model FLOPs utilization of the ranks in use, 0 to 1, relative to `mfu_peak_flops_per_s`"""
    peak_memory_bytes: Number
    """highest memory peak of any rank"""
    peak_memory_low_bytes: Number
    """lower end of the 90% interval"""
    peak_memory_high_bytes: Number
    """upper end of the 90% interval"""
    memory_parts_bytes: MemoryParts
    """peak memory by cause"""
    oom_probability: Number
    """probability that the peak exceeds the GPU's memory, 0 to 1"""
    mfu_peak_flops_per_s: Number = 0.0
    """peak of one GPU in the precision of the matmuls, the denominator of `mfu`: the datasheet's,
    or the rate that a calibration reached if it is higher; 0 in estimates of earlier versions"""
    level: Number = 1.0
    """factor on all times, learned from a study's earlier trials: measured step time divided by
    predicted step time on this cluster with its software"""
    level_sigma: Number = 0.0
    """standard deviation of the log of `level`, which all configs share; the interval of the step
    time includes this uncertainty"""
    stall_probability: Number = 0.0
    """probability, 0 to 1, that transfers between pipeline stages on different nodes stall; the
    interval of the step time includes this risk"""
    stalled_step_time_s: Number = 0.0
    """step time with such stalls, s; `step_time_s` excludes stalls, and both are equal if nothing
    can stall; 0 in estimates of earlier versions"""
    phases_s: PhaseParts | None = None
    """the step of a post-training workload by phase; None for other workloads"""

    def __len__(self) -> int:
        return int(np.size(self.step_time_s))

    def row(self, index: int) -> Estimate:
        """Return the estimate of config `index`, as plain floats."""
        return self.map(lambda column: float(np.atleast_1d(column)[index]))

    def take(self, index: Any) -> Estimate:
        """Return the rows selected by `index` (integers or a mask)."""
        return self.map(lambda column: np.atleast_1d(column)[index])

    def map(self, function: Any) -> Estimate:
        """Return the estimate with `function` applied to every number."""
        values: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            if isinstance(value, _Parts):
                values[f.name] = type(value)(
                    **{p.name: function(getattr(value, p.name)) for p in fields(value)}
                )
            else:
                values[f.name] = function(value)
        return Estimate(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: numbers for one config, lists for many."""
        return {
            f.name: v.to_dict() if isinstance(v, _Parts) else _plain(v)
            for f in fields(self)
            if (v := getattr(self, f.name)) is not None
        }


def _plain(value: Any) -> Any:
    """Return arrays as lists; other values unchanged."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
