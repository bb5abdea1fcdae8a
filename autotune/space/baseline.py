"""The config that nobody tuned: what a study has to beat.

It is what a trainer does when it is told only the number of GPUs: data parallel over all ranks,
micro-batch 1, no ZeRO, no recomputation. The precision is the first that the space lists, and each
of the study's own knobs has the first value of its list.
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

    It uses as many ranks as the space allows and the batch sizes can be dealt to; it need not be in
    the space itself, only legal. Where no such config is legal (no batch size is a multiple of any
    world size), it is the config in the space that comes nearest: least model parallelism, most
    ranks, smallest micro-batch.
    """
    return _default(space, space.launchable, lambda row: True)


def default_of_study(study: Study) -> ParallelConfig:
    """The same of a study's space, for which its trainer is asked about a few configs, not about
    all. Raises the errors of `SearchSpace.of_study`."""
    valid, launchable = SearchSpace.build(study.workload, study.space), Launchable.of(study)
    can_launch = launchable.asked_by_row(valid.workload, valid.table)
    if not any(map(can_launch, range(len(valid)))):
        return default_config(SearchSpace.of_study(study))  # which says why there is none
    return _default(valid, launchable, can_launch)


def _default(
    space: SearchSpace, launchable: Launchable | None, can_launch: Callable[[int], bool]
) -> ParallelConfig:
    named = space.spec.knobs.get("precision", ()) if space.spec else ()
    precision = str(named[0]) if named else space[0].precision
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
    """How far each config is from data parallelism alone, keys of a lexicographic order, the last
    one first; shape (6, N)."""
    keys = (
        ~table.is_word("precision", precision),
        table.column("recompute"),
        table.zero_stage,
        table.micro_batch_size,
        -table.world_size,
        table.tp * table.pp * table.cp,
    )
    return np.array(keys, dtype=np.int64)
