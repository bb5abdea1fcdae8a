"""What the trainer of a study can launch: its limits as laws of the space.

A trainer's limits are functions of one config, not of columns. They are asked once for each
combination of the knobs that they depend on (`Trainer.limited_by`), so that a million configs need
a few thousand questions. What is cut counts under `TRAINER_KNOB`, e.g. `deepspeed_pp`.
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
    """The laws of one trainer with its options."""

    trainer: Trainer
    options: Mapping[str, Any] = field(default_factory=dict)
    """as the study gives them"""

    @classmethod
    def of(cls, study: Study) -> Launchable:
        """The laws of the study's trainer. Raises `CatalogError` for an unknown one."""
        return cls(trainer=trainer(study.trainer), options=study.trainer_options)

    @classmethod
    def in_space(
        cls, trainer: Trainer, options: Mapping[str, Any], workload: Workload, space: SpaceSpec
    ) -> Launchable:
        """The laws of a trainer in one space: a knob with one value there need not be passed on.
        Raises `SpecError` for wrong options."""
        return cls(
            trainer=trainer, options=trainer.for_space(options, fixed_knobs(workload, space))
        )

    def why_not(self, workload: Workload, config: ParallelConfig) -> str | None:
        """Why the trainer cannot launch the config, in words; None when it can."""
        refusal = self.refusal(workload, config)
        return f"{self.trainer.name} cannot express {refusal}" if refusal else None

    def refusal(self, workload: Workload, config: ParallelConfig) -> str:
        """The values that the trainer cannot express, each with the reason; empty when it can
        launch the config."""
        return "; ".join(map(str, self.trainer.limits(workload, config, self.options)))

    def cut(
        self, workload: Workload, table: ConfigTable
    ) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """Which rows it can launch, shape (N,), and how many it cannot, by the first knob that
        stands against it."""
        columns = [
            np.unique(table.column(name), return_inverse=True)[1].reshape(-1)
            for name in self._limiting(table)
        ]
        rows = np.stack([np.zeros(len(table), dtype=np.int64), *columns], axis=1)
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        found = [self.trainer.limits(workload, table[int(row)], self.options) for row in first]
        kind = kind.reshape(-1)
        counts: dict[str, int] = {}
        for limits, size in zip(found, np.bincount(kind, minlength=len(found)), strict=True):
            if limits:
                name = f"{self.trainer.name}_{limits[0].knob.partition('.')[0]}"
                counts[name] = counts.get(name, 0) + int(size)
        return np.array([not limits for limits in found], dtype=np.bool_)[kind], counts

    def asked_by_row(self, workload: Workload, table: ConfigTable) -> Callable[[int], bool]:
        """Whether it can launch a row, asked when it is needed: for a look at a few rows, for which
        `cut` would ask about all."""
        columns, answers = (
            [table.column(name) for name in self._limiting(table)],
            dict[tuple[Any, ...], bool](),
        )

        def can_launch(row: int) -> bool:
            kind = tuple(column[row] for column in columns)
            if kind not in answers:
                answers[kind] = not self.trainer.limits(workload, table[row], self.options)
            return answers[kind]

        return can_launch

    def _limiting(self, table: ConfigTable) -> list[str]:
        """The knobs that its limits depend on. All rows have the same knobs in `extra`, most of
        which are carried or refused by name: their values multiply the rows, not the questions."""
        return [
            name
            for name in table.knobs
            if name in self.trainer.limited_by or name in self.trainer.limited_by_own
        ]


def why_not_in(study: Study, config: ParallelConfig) -> str | None:
    """Why the study cannot run the config, in words: the first law that it breaks, or what the
    trainer cannot express; None when it can."""
    return why_not(study.workload, config) or Launchable.of(study).why_not(study.workload, config)


def fixed_knobs(workload: Workload, space: SpaceSpec) -> dict[str, Any]:
    """Knobs that have the same value in all configs in the space, with that value; those at their
    default may be left out.

    It follows from what the space lists, not from its configs: a value that no legal config has
    counts, too.
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
    if (
        "accumulation_steps" not in listed
        and len(workload.global_batch_sizes) == 1
        and "dp" in fixed
        and micro_batch_size
    ):
        fixed["accumulation_steps"] = max(
            1, workload.global_batch_sizes[0] // (micro_batch_size * fixed["dp"])
        )
    return fixed
