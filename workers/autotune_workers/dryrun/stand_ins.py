"""What a dry run trains in place of what it cannot run, with the difference in words.

Dry runs compute on fake CPU tensors. Kernels that only a GPU has, or that a compiler would have to make, are left out: what they replace is run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.ports import TrialRequest
from autotune.spec import MeasureSpec, ParallelConfig, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A request that can be run dry."""

    request: TrialRequest
    """in place of the one that was meant"""
    notes: tuple[str, ...]
    """what was replaced, in words"""


def stand_in(workload: Workload, config: ParallelConfig) -> StandIn:
    """The request of that config, without what needs a compiler or kernels of a GPU."""
    notes = []
    if config.compile:
        notes.append("torch.compile is left out: layers run as they are written, which keeps at least as much memory")
        config = replace(config, compile=False, activation_budget=100)
    if config.precision == "fp8":
        notes.append("fp8 products run in bf16: their 8-bit copies of weights and inputs are left out")
        config = replace(config, precision="bf16")
    if config.precision == "tf32":  # the same numbers in memory
        config = replace(config, precision="fp32")
    request = TrialRequest(
        study="dry-run",
        number=0,
        attempt=1,
        workload=workload,
        config=config,
        measure=MeasureSpec(),
    )
    return StandIn(request=request, notes=tuple(notes))
