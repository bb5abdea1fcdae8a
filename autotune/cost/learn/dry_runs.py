"""Results of dry runs of a workload's configs, stored and reused by later plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.spec import MEMORY_CATEGORIES, ConfigTable, DryRun, ParallelConfig

VERSION = 9
"""version of the stored format; dry runs stored in another version are ignored"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDryRun:
    """Memory and matrix products of one config, from dry runs of its pipeline ranks."""

    config: ParallelConfig
    """with the fewest micro-batches that have the same peak (`shortened`)"""
    allocated_bytes: float
    """highest peak of any rank"""
    parts_bytes: Mapping[str, float]
    """bytes of that peak by category (`MEMORY_CATEGORIES`)"""
    product_flops: float = 0.0
    """FLOPs of the matrix products of one micro-batch of a whole model; 0 with a pipeline"""

    @classmethod
    def of(cls, config: ParallelConfig, runs: tuple[DryRun, ...]) -> ConfigDryRun:
        """Summarize the dry runs of a config's pipeline ranks."""
        fullest = max(runs, key=lambda run: run.peak.total_bytes).peak
        products = (
            sum(2.0 * p.m * p.n * p.k * p.count for p in runs[0].products)
            if config.pp == 1
            else 0.0
        )
        parts = {name: float(fullest.parts_bytes.get(name, 0)) for name in MEMORY_CATEGORIES}
        return cls(
            config=config,
            allocated_bytes=float(fullest.total_bytes),
            parts_bytes=parts,
            product_flops=products,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DryRuns:
    """The dry-run configs of one workload."""

    fingerprint: str
    """hash of the workload and of the package versions used"""
    points: tuple[ConfigDryRun, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """reason by config, for configs that cannot be dry-run"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        points = [{**asdict(point), "config": point.config.to_dict()} for point in self.points]
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "points": points,
            "failed": dict(self.failed),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DryRuns | None:
        """Read the values of `to_dict`; return None for another version of the format."""
        if values.get("version") != VERSION:
            return None
        points = (
            ConfigDryRun(**{**one, "config": ParallelConfig.from_dict(one["config"])})
            for one in values["points"]
        )
        return cls(fingerprint=values["fingerprint"], points=tuple(points), failed=values["failed"])

    def is_known(self, config: ParallelConfig) -> bool:
        """Return whether the config was dry-run, or cannot be."""
        short = shortened(config)
        return str(short) in self.failed or any(point.config == short for point in self.points)


def shortened(config: ParallelConfig) -> ParallelConfig:
    """Return the config with the fewest micro-batches per step that have the same peak, except for
    the inputs of the omitted ones."""
    return replace(config, accumulation_steps=int(enough_steps(ConfigTable.of([config]))[0]))


def enough_steps(table: ConfigTable) -> NDArray[Any]:
    """Return the fewest micro-batches with the same peak, shape (N,): at most 2, because later ones
    repeat the second; all in a pipeline, which has a message buffer for each."""
    return np.asarray(
        np.where(table.pp > 1, table.accumulation_steps, np.minimum(table.accumulation_steps, 2))
    )
