"""What dry runs of a workload's configs said: values that are kept between plans, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.spec import MEMORY_CATEGORIES, ConfigTable, DryRun, ParallelConfig

VERSION = 9
"""of the format in which dry runs are kept; of another one nothing is read"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunDry:
    """What the dry runs of a config's pipeline ranks said."""

    config: ParallelConfig
    """with as few micro-batches as have the same peak (`shortened`)"""
    allocated_bytes: float
    """peak of the fullest rank"""
    parts_bytes: Mapping[str, float]
    """of it, by `MEMORY_CATEGORIES`"""
    product_flops: float = 0.0
    """FLOPs of the matrix products of one micro-batch of a whole model; 0 with a pipeline"""

    @classmethod
    def of(cls, config: ParallelConfig, runs: tuple[DryRun, ...]) -> RunDry:
        """The dry runs of a config's ranks."""
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
    """The configs of one workload that were run dry."""

    fingerprint: str
    """of the workload and the versions of what ran"""
    points: tuple[RunDry, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """configs that cannot be run dry, with the reason"""

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
        """The dry runs of `to_dict`'s values; None for another version of the format."""
        if values.get("version") != VERSION:
            return None
        points = (
            RunDry(**{**one, "config": ParallelConfig.from_dict(one["config"])})
            for one in values["points"]
        )
        return cls(fingerprint=values["fingerprint"], points=tuple(points), failed=values["failed"])

    def is_known(self, config: ParallelConfig) -> bool:
        """Whether the config was run, or cannot be."""
        short = shortened(config)
        return str(short) in self.failed or any(point.config == short for point in self.points)


def shortened(config: ParallelConfig) -> ParallelConfig:
    """The config with as few micro-batches to a step as have the same peak, but for the inputs of
    the others."""
    return replace(config, accumulation_steps=int(enough_steps(ConfigTable.of([config]))[0]))


def enough_steps(table: ConfigTable) -> NDArray[Any]:
    """From the second micro-batch on a step repeats itself; a pipeline has a buffer for the
    messages of every one."""
    return np.asarray(
        np.where(table.pp > 1, table.accumulation_steps, np.minimum(table.accumulation_steps, 2))
    )
