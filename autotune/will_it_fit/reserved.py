"""GPU memory that the allocator reserves for the tensors of a rank.

    reserved = allocated * factor + workspace          factor = 1 + fragmentation, log-normal with standard deviation `sigma`

`allocated` comes from a dry run. `fragmentation` and the workspace of kernels and collectives are constants of the GPU type and trainer
(`autotune.cost.memory.constants`). A config fits when what is reserved is below `usable`: the GPU's memory less CUDA context and communication buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from autotune.cost import Calibration
from autotune.cost.learn.uncertainty import exceeds, interval
from autotune.cost.memory.constants import memory_source, reserved_sigma
from autotune.cost.traits import loop_of
from autotune.spec import Workload


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """GPU memory reserved by the allocator of one rank."""

    peak_bytes: float
    """bytes reserved at the peak, median"""
    low_bytes: float
    """lower end of the 90% interval"""
    high_bytes: float
    """upper end of the 90% interval"""
    usable_bytes: float
    """most bytes that it can reserve on this GPU"""
    oom_probability: float
    """probability that it needs more than that, 0 to 1"""
    source: str
    """where the constants come from, as text"""

    @classmethod
    def of(cls, allocated_bytes: float, workload: Workload, constants: Calibration) -> Reserved:
        """The memory reserved if `allocated_bytes` are allocated."""
        gpu = workload.cluster.gpu
        usable = gpu.memory_bytes * constants.usable_fraction
        peak = allocated_bytes * (1.0 + constants.fragmentation) + constants.framework_bytes
        fitted = memory_source(gpu.name, loop_of(workload))
        sigma = reserved_sigma(gpu.name, loop_of(workload))
        low, high = interval(np.asarray(peak), sigma)
        return cls(
            peak_bytes=float(peak),
            low_bytes=max(float(low), allocated_bytes),
            high_bytes=float(high),
            usable_bytes=usable,
            oom_probability=float(exceeds(np.asarray(peak), usable, sigma)),
            source=f"fitted to {fitted.source}"
            if "fragmentation" in fitted.fitted
            else f"assumed, because no published run of {loop_of(workload)} on {gpu.name} prints it",
        )
