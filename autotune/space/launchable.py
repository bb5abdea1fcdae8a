"""Applies the limits of a study's trainer to its space: removes configs that it cannot launch.

A trainer's limits are a function of a single config, not of columns. They are evaluated once for
each combination of the knobs they depend on (`Trainer.limited_by`), which is a few thousand times
for a million configs. Removed configs are counted under `TRAINER_KNOB`, such as `deepspeed_pp`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.space.completion import default_precision
from autotune.space.constraint import why_not
from autotune.spec import KNOBS, ConfigTable, ParallelConfig, SpaceSpec, Study, Workload
from autotune.trainers import Trainer, trainer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launchable:
    """The limits of a trainer with its options."""

    trainer: Trainer
    options: Mapping[str, Any] = field(default_factory=dict)
    """the study's options of the trainer"""

    @classmethod
    def of(cls, study: Study) -> Launchable:
        """The limits of the study's trainer. Raises `CatalogError` for an unknown trainer."""
        return cls(trainer=trainer(study.trainer), options=study.trainer_options)

    @classmethod
    def in_space(
        cls, trainer: Trainer, options: Mapping[str, Any], workload: Workload, space: SpaceSpec
    ) -> Launchable:
        """The limits of a trainer in a space, where knobs with a single value need not be passed to
        it. Raises `SpecError` for invalid options."""
        return cls(
            trainer=trainer, options=trainer.for_space(options, fixed_knobs(workload, space))
        )

    def why_not(self, workload: Workload, config: ParallelConfig) -> str | None:
        """Why the trainer cannot launch the config, in words; None if it can."""
        refusal = self.refusal(workload, config)
        return f"{self.trainer.name} cannot express {refusal}" if refusal else None

    def refusal(self, workload: Workload, config: ParallelConfig) -> str:
        """The values that the trainer cannot express, each with the reason, as text; empty if it can
        launch the config."""
        return "; ".join(map(str, self.trainer.limits(workload, config, self.options)))

    def cut(
        self, workload: Workload, table: ConfigTable
    ) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """Mask of the rows that the trainer can launch, shape (N,), and the number of others by
        `TRAINER_KNOB` of their first limit."""
        columns = [
            np.unique(table.column(name), return_inverse=True)[1].reshape(-1)
            for name in self._limiting(table)
        ]
        rows = np.stack([np.zeros(len(table), dtype=np.int64), *columns], axis=1)
        _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        by_group = [self.trainer.limits(workload, table[int(row)], self.options) for row in first]
        group = group.reshape(-1)
        counts: dict[str, int] = {}
        for limits, size in zip(by_group, np.bincount(group, minlength=len(by_group)), strict=True):
            if limits:
                name = f"{self.trainer.name}_{limits[0].knob.partition('.')[0]}"
                counts[name] = counts.get(name, 0) + int(size)
        return np.array([not limits for limits in by_group], dtype=np.bool_)[group], counts

    def asked_by_row(self, workload: Workload, table: ConfigTable) -> Callable[[int], bool]:
        """Return a function that tells whether the trainer can launch a row. It evaluates limits on
        demand, which is faster than `cut` for a few rows."""
        columns = [table.column(name) for name in self._limiting(table)]
        answers: dict[tuple[Any, ...], bool] = {}

        def can_launch(row: int) -> bool:
            values = tuple(column[row] for column in columns)
            if values not in answers:
                answers[values] = not self.trainer.limits(workload, table[row], self.options)
            return answers[values]

        return can_launch

    def _limiting(self, table: ConfigTable) -> list[str]:
        """The knobs that the trainer's limits depend on. Most knobs in `extra` are accepted or
        rejected by name, so their values do not matter here."""
        return [
            name
            for name in table.knobs
            if name in self.trainer.limited_by or name in self.trainer.limited_by_own
        ]


def why_not_in(study: Study, config: ParallelConfig) -> str | None:
    """Why the study cannot run the config, in words: the first rule that it violates, or the
    trainer's limits; None if it can."""
    return why_not(study.workload, config) or Launchable.of(study).why_not(study.workload, config)


def fixed_knobs(workload: Workload, space: SpaceSpec) -> dict[str, Any]:
    """The knobs with the same value in all configs of the space, without some at their default.

    Only the listed values are considered, not the configs: a knob with a second value that no valid
    config has is not fixed.
    """
    listed = {"precision": (default_precision(workload),), **space.knobs, **space.extra}
    fixed = {name: values[0] for name, values in listed.items() if len(set(values)) == 1}
    mesh: list[Any] = [
        fixed.get(knob, None if knob in listed else KNOBS[knob].default)
        for knob in ("tp", "pp", "cp")
    ]
    sizes = set(space.world_sizes or (workload.cluster.num_gpus,))
    if "dp" not in listed and len(sizes) == 1 and None not in mesh:
        fixed["dp"] = max(1, sizes.pop() // math.prod(mesh))
    micro_batch_size = fixed.get("micro_batch_size", None if "micro_batch_size" in listed else 1)
    has_one_batch = len(workload.global_batch_sizes) == 1 and "dp" in fixed and micro_batch_size
    if "accumulation_steps" not in listed and has_one_batch:
        per_step = micro_batch_size * fixed["dp"]
        fixed["accumulation_steps"] = max(1, workload.global_batch_sizes[0] // per_step)
    return fixed
