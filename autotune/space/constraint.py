"""The rules that decide which configs are valid. Each is a vectorized check with a reason in words.

    world_size   tp * pp * dp * cp fits the cluster               batch     micro_batch_size * accumulation_steps * dp is a requested batch
    tp_*         tp divides the dimensions it splits              pp_*      layers, schedule and micro-batches of a pipeline
    sp_*         sequence parallelism                             cp_*      context parallelism
    ep_*         expert parallelism                               zero_*    where ZeRO can shard
    replicas_*   copies of shards (HSDP)                          budget    the compiler's budget of activations
    precision    the hardware supports it

Assumptions: vocabularies are padded by the trainer (Megatron pads to a multiple of 128 * tp), so
there is no rule on them; layers need not divide evenly over stages; limits of a single trainer are
not rules but belong to that trainer. Some rules reject configs that would train, because they are
equivalent to another one (ZeRO on one rank, a schedule without a pipeline), so that the space has
every training only once.

The rules are in `mesh_laws.py`, `step_laws.py` and, for post-training, `rl_laws.py`, with their
sources.
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
"""the rules for all workloads, the cheapest and most general first"""


def laws_for(workload: Workload) -> tuple[Law, ...]:
    """The rules for a workload, including those of post-training if it is one."""
    return LAWS if workload.rl is None else (*LAWS, *RL_LAWS)


def why_not(
    workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None = None
) -> str | None:
    """The reason why `config` is invalid, by the first rule that it violates; None if it is
    valid."""
    return next(_violations(workload, config, laws), None)


def reasons(
    workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None = None
) -> list[str]:
    """The reasons of all rules that `config` violates. `laws`: the rules to check, by default those
    of the workload."""
    return list(_violations(workload, config, laws))


def _violations(
    workload: Workload, config: ParallelConfig, laws: Sequence[Law] | None
) -> Iterator[str]:
    table = ConfigTable.of([config])
    for law in laws_for(workload) if laws is None else laws:
        if not law.check(workload, table)[0]:
            yield law.reason(workload, config)


def legal(workload: Workload, table: ConfigTable) -> Mask:
    """Mask of the valid rows of `table`, shape (N,)."""
    mask = np.ones(len(table), dtype=np.bool_)
    for law in laws_for(workload):
        mask &= law.check(workload, table)
    return mask
