"""The default baseline of a study: the config of a trainer that is given only the number of GPUs.

It has data parallelism over all ranks, micro-batch 1, no ZeRO and no recomputation. The precision
is the first in the space's list, and each of the study's own knobs has its first value.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autotune.space.constraint import why_not
from autotune.space.launchable import Launchable
from autotune.space.space import SearchSpace
from autotune.spec import ConfigTable, ParallelConfig, Study


def default_config(space: SearchSpace) -> ParallelConfig:
    """The baseline of a space's workload: data parallel only, micro-batch 1.

    It uses the largest allowed number of ranks that divides a batch size. It must be valid, but need
    not be in the space. If there is no such config (no batch size is a multiple of a world size), it
    is the nearest config in the space: least model parallelism, most ranks, smallest micro-batch.
    """
    return _default(space, space.launchable, lambda row: True)


def default_of_study(study: Study) -> ParallelConfig:
    """The baseline of a study's space. It checks only a few configs for what the trainer can launch,
    not the whole space. Raises the errors of `SearchSpace.of_study`."""
    valid, launchable = SearchSpace.build(study.workload, study.space), Launchable.of(study)
    can_launch = launchable.asked_by_row(valid.workload, valid.table)
    if not any(map(can_launch, range(len(valid)))):
        return default_config(SearchSpace.of_study(study))  # raises the error with the reason
    return _default(valid, launchable, can_launch)


def _default(
    space: SearchSpace, launchable: Launchable | None, can_launch: Callable[[int], bool]
) -> ParallelConfig:
    listed = space.spec.knobs.get("precision", ()) if space.spec else ()
    precision = str(listed[0]) if listed else space[0].precision
    extra = {knob.name: knob.default for knob in space.table.own}
    for world_size in reversed(space.world_sizes):
        for batch in space.workload.global_batch_sizes:
            if batch % world_size == 0:
                config = ParallelConfig(
                    dp=world_size,
                    accumulation_steps=batch // world_size,
                    precision=precision,
                    extra=extra,
                )
                if why_not(space.workload, config) is None and (
                    launchable is None or launchable.why_not(space.workload, config) is None
                ):
                    return config
    nearest = map(int, np.lexsort(distance_from_plain(space.table, precision)))
    return space[next(filter(can_launch, nearest))]


def distance_from_plain(table: ConfigTable, precision: str) -> NDArray[np.int64]:
    """Keys for `np.lexsort`, shape (6, N), that sort configs by their distance from plain data
    parallelism in this precision."""
    keys = (
        ~table.is_word("precision", precision),
        table.column("recompute"),
        table.zero_stage,
        table.micro_batch_size,
        -table.world_size,
        table.tp * table.pp * table.cp,
    )
    return np.array(keys, dtype=np.int64)
