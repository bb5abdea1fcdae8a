"""The answer to "will it fit?" for one config.

The verdict follows from the risk, P(OOM), the probability that the rank with the highest peak needs
more memory than its GPU can give:

    fits            P(OOM) below `LIMIT`
    at the limit    P(OOM) from `LIMIT` to 1 - `LIMIT`: try it for a few steps before you rely on it
    does not fit    P(OOM) above 1 - `LIMIT`

A plan counts a config among those that are expected to fit up to `planning.FITS`, and so does
`Fit.is_expected`.

A dry run executes the training loop of `DRY_RUN_TRAINER`. It decides only for studies with that
trainer: others keep, free and recompute different tensors. For any other trainer, and if no dry run
was possible, verdict and risk are those of the cost model's formulas for that trainer, which are
also those of `plan` and `estimate`: two commands never give two verdicts. `Fit.fits` is None if no
dry run was possible, because the question was about the model's code.

GPU memory that the allocator reserves for the tensors of a rank:

    reserved = allocated * factor + workspace          factor = 1 + fragmentation, log-normal with standard deviation `sigma`

`allocated` comes from a dry run. `fragmentation` and the workspace of kernels and collectives are
constants of the GPU type and trainer (`autotune.cost.memory.constants`). A config fits when what is
reserved is below `usable`: the GPU's memory less CUDA context and communication buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from autotune.cost import Calibration
from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.cost.learn.uncertainty import exceeds, interval
from autotune.cost.memory.constants import memory_source, reserved_sigma
from autotune.cost.traits import loop_of
from autotune.plan import plan as planning
from autotune.spec import DryRun, Estimate, ParallelConfig, Workload

Verdict = Literal["fits", "at the limit", "does not fit"]
FITS: Verdict = "fits"
AT_THE_LIMIT: Verdict = "at the limit"
DOES_NOT_FIT: Verdict = "does not fit"
LIMIT = 0.05
"""P(OOM) below which a config counts as fitting"""


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
            else f"assumed, because no published run of {loop_of(workload)} on {gpu.name} reports this value",
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a config fits into GPU memory, and what its step consists of."""

    workload: Workload
    config: ParallelConfig
    runs: tuple[DryRun, ...]
    """dry runs of the first, a middle and the last rank of the pipeline; empty if none was
    possible"""
    estimate: Estimate
    """the cost model's estimate for the config, as plain floats"""
    reserved: Reserved
    """memory reserved on the rank with the highest peak, by the basis of the answer"""
    problem: str = ""
    """why no dry run was possible, as text; the answer then comes from the cost model"""
    remedy: str = ""
    """how to fix the problem"""
    notes: tuple[str, ...] = ()
    """what the answer omits or assumes, in sentences"""
    took_s: float = 0.0
    """wall time of all runs"""

    @property
    def runs_study_trainer(self) -> bool:
        """Whether a dry run executes the study's own trainer."""
        return self.workload.trainer == DRY_RUN_TRAINER

    @property
    def basis(self) -> Literal["dry run", "cost model"]:
        """What the answer is based on."""
        return "dry run" if self.runs and self.runs_study_trainer else "cost model"

    @property
    def fullest(self) -> DryRun | None:
        """The rank with the highest peak."""
        return max(self.runs, key=lambda run: run.peak.total_bytes, default=None)

    @property
    def allocated_bytes(self) -> int | None:
        """Peak of the tensors on the rank with the highest peak; None without a dry run."""
        return self.fullest.peak.total_bytes if self.fullest else None

    @property
    def memory_bytes(self) -> float:
        """Memory of one GPU."""
        return self.workload.cluster.gpu.memory_bytes

    @property
    def oom_probability(self) -> float:
        """Probability that the rank with the highest peak runs out of memory, 0 to 1."""
        return self.reserved.oom_probability

    @property
    def verdict(self) -> Verdict:
        """The answer as text."""
        return _verdict(self.oom_probability)

    @property
    def cost_model_verdict(self) -> Verdict:
        """The formulas' answer, which `plan` and `estimate` give for a model without a profile."""
        return _verdict(float(self.estimate.oom_probability))

    @property
    def is_expected(self) -> bool:
        """Whether the config is expected to fit, by the basis of the answer."""
        return self.oom_probability <= planning.FITS

    @property
    def fits(self) -> bool | None:
        """Whether it is expected to fit; None if no dry run was possible."""
        return self.is_expected if self.runs else None

    @property
    def guesses(self) -> tuple[str, ...]:
        """What depends on the model's data and was assumed by the runs, as text."""
        return tuple(dict.fromkeys(guess for run in self.runs for guess in run.guesses))

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the packages that affect the result."""
        return {name: version for run in self.runs for name, version in run.versions.items()}


def _verdict(oom_probability: float) -> Verdict:
    if oom_probability < LIMIT:
        return FITS
    return AT_THE_LIMIT if oom_probability <= 1.0 - LIMIT else DOES_NOT_FIT
