"""Protocol of dry runners, which execute a model without a GPU. They are registered in the group
`autotune.dry_runners`, so that the core does not need torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.spec import DryRun, ModelSpec, ParallelConfig, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunLimits:
    """Limits of a dry run's process."""

    wall_s: float = 600.0
    """maximum wall time, seconds"""
    memory_bytes: float = 8 * 2**30
    """maximum peak of resident memory, including libraries, bytes"""


class DryRunner(Protocol):
    """Builds and runs models in separate processes."""

    def inspect(self, model: ModelSpec, *, limits: DryRunLimits) -> ModelSpec:
        """Build the model and return it with what its code determines: shape, parameters, plans,
        fingerprint. Raises `DryRunError` with the line that failed and a remedy."""

    def run(
        self, workload: Workload, config: ParallelConfig, *, pp_rank: int, limits: DryRunLimits
    ) -> DryRun:
        """Execute two optimizer steps of the first rank of pipeline stage `pp_rank`. Raises
        `DryRunError` with the reason and a remedy if that is not possible."""
