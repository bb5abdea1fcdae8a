"""The laws that decide which configs exist: each a vectorized check, with the reason in words when
it is broken.

    world_size   tp * pp * dp * cp fits the cluster               batch     micro_batch_size * accumulation_steps * dp is the asked batch
    tp_*         what tensor parallelism cuts must divide         pp_*      layers, schedule and micro-batches of a pipeline
    sp_*         sequence parallelism                             cp_*      context parallelism
    ep_*         expert parallelism                               zero_*    what ZeRO can shard, and where
    replicas_*   copies of shards (HSDP)                          budget    the compiler's budget of activations
    precision    the hardware has it

Assumptions: vocabularies are padded by the trainer (Megatron pads to a multiple of 128 * tp), so no
law speaks of them; layers need not divide evenly over stages; what one trainer alone cannot do is
not a law but a limit of that trainer. Some laws refuse configs that would train, because they are
another config under a second name (ZeRO on one rank, a schedule without a pipeline): the space
holds every training once.

The laws themselves stand in `mesh_laws.py`, `step_laws.py` and, of post-training alone,
`rl_laws.py`, with their sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autotune.space.law import Law, Mask
from autotune.space.mesh_laws import MESH_LAWS
from autotune.space.rl_laws import RL_LAWS
from autotune.space.step_laws import STEP_LAWS
from autotune.spec import ConfigTable, ParallelConfig, Workload

LAWS: tuple[Law, ...] = (*MESH_LAWS, *STEP_LAWS)
"""All laws that need no more than workload and config, cheapest and most general first."""


def laws_for(workload: Workload) -> tuple[Law, ...]:
    """The laws of a workload: those of post-training only where it is one."""
    return LAWS if workload.rl is None else (*LAWS, *RL_LAWS)


def why_not(
    workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None = None
) -> str | None:
    """The reason of the first law that `config` breaks, or None when it is legal."""
    return next(_broken(workload, config, laws), None)


def reasons(
    workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None = None
) -> list[str]:
    """The reasons of all laws (default: those of the workload) that `config` breaks."""
    return list(_broken(workload, config, laws))


def _broken(
    workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None
) -> Iterator[str]:
    table = ConfigTable.of([config])
    for law in laws_for(workload) if laws is None else laws:
        if not law.check(workload, table)[0]:
            yield law.reason(workload, config)


def legal(workload: Workload, table: ConfigTable) -> Mask:
    """Which rows of `table` obey all laws of the workload, shape (N,)."""
    mask = np.ones(len(table), dtype=np.bool_)
    for law in laws_for(workload):
        mask &= law.check(workload, table)
    return mask
