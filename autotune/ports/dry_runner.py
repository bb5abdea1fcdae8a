"""Protocol of what runs a model dry. Registered under `autotune.dry_runners`, so that the core
needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.spec import DryRun, ModelSpec, ParallelConfig, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunLimits:
    """What the process of a dry run may take."""

    wall_s: float = 600.0
    """from its start to its answer"""
    memory_bytes: float = 8 * 2**30
    """resident at its fullest moment, libraries included"""


class DryRunner(Protocol):
    """Builds and runs models in processes of their own."""

    def inspect(self, model: ModelSpec, *, limits: DryRunLimits) -> ModelSpec:
        """The model with what only its code can tell: shape, parameters, plans, fingerprint. Raises
        `DryRunError` with the line that failed and a remedy."""

    def run(
        self, workload: Workload, config: ParallelConfig, *, pp_rank: int, limits: DryRunLimits
    ) -> DryRun:
        """Two optimizer steps of the first rank of that pipeline stage. Raises `DryRunError`: what
        cannot be run dry, why, and what to do."""
