"""What the trainer of a study can launch: its limits as laws of the space.

A trainer's limits are functions of one config, not of columns. They are asked once for each combination of the knobs that they depend on
(`Trainer.limited_by`), so that a million configs need a few thousand questions. What is cut counts under `TRAINER_KNOB`, e.g. `deepspeed_pp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ParallelConfig, Study, Workload
from autotune.trainers import Limit, Trainer, trainer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launchable:
    """The laws of one trainer with its options."""

    trainer: Trainer
    options: Mapping[str, Any] = field(default_factory=dict)
    """as the study gives them"""

    @classmethod
    def of(cls, study: Study) -> Launchable:
        """The laws of the study's trainer. Raises `CatalogError` for an unknown one."""
        return cls(trainer=trainer(study.trainer), options=study.trainer_options)

    def why_not(self, workload: Workload, config: ParallelConfig) -> str | None:
        """Why the trainer cannot launch the config, in words; None when it can."""
        limits = self.trainer.limits(workload, config, self.options)
        return f"{self.trainer.name} cannot express {'; '.join(map(str, limits))}" if limits else None

    def cut(self, workload: Workload, table: ConfigTable) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """Which rows it can launch, shape (N,), and how many it cannot, by the first knob that stands against it."""
        names = [name for name in table.knobs if name in self.trainer.limited_by or table.knobs[name].is_own]
        rows = np.stack([table.column(name).astype(np.int64) for name in names], axis=1)
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        found = [self.trainer.limits(workload, table[int(row)], self.options) for row in first]
        kind = kind.reshape(-1)
        counts: dict[str, int] = {}
        for limits, size in zip(found, np.bincount(kind, minlength=len(found)), strict=True):
            if limits:
                name = self._name(limits[0])
                counts[name] = counts.get(name, 0) + int(size)
        return np.array([not limits for limits in found], dtype=np.bool_)[kind], counts

    def _name(self, limit: Limit) -> str:
        return f"{self.trainer.name}_{limit.knob.partition('.')[0]}"
