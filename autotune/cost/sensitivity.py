"""Sensitivity: how the predicted step times of configs change with the constants of the cost model.

    J_ik = d log f_i / d log theta_k        by differences of 4% in each constant

Most of J is the share of the step that a constant stands for, with the sign of its effect. A constant's last column stands for the level, of which every
derivative is 1. Differences go downward, where no fraction passes 1. One evaluation of the step time per constant: some 10 ms for a hundred configs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import layout_of
from autotune.cost.rl.step import estimate_step
from autotune.cost.stages import stages_of
from autotune.cost.stalls import with_stalls
from autotune.cost.step_time import time_parts
from autotune.cost.traits import traits_of
from autotune.cost.uncertainty import time_sigma
from autotune.spec import ConfigTable, TimeParts, Workload

Array = NDArray[np.float64]

STEP = 0.04
"""difference of a constant's log"""

DEPTH = ("name", "source", "num_layers", "num_dense_layers", "dense_ffn_hidden_size", "mtp_layers")
"""of a model: what may differ between models whose layers are the same"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """n configs: predicted step times, and how they change with K constants and the level."""

    log_step_s: Array
    """log of the predicted step time in seconds, shape (n,)"""
    jacobian: Array
    """J, shape (n, K + 1)"""
    own_sigma: Array
    """standard deviation of the own error, shape (n,)"""
    points: Array
    """coordinates of the configs, shape (n, d)"""
    workloads: NDArray[np.intp]
    """number of each config's workload, shape (n,)"""
    layers: NDArray[np.int64]
    """a number for what a rank's layers are: the same where trainer, GPU, sequence and the shape of a layer are, shape (n,)"""
    stall_probability: Array
    """chance that sends of the config stall, shape (n,)"""
    stall_log: Array
    """log of the factor by which that lengthens the step, shape (n,)"""

    @classmethod
    def joined(cls, several: Sequence[Sensitivity]) -> Sensitivity:
        """All rows, one after the other."""
        return cls(**{f.name: np.concatenate([getattr(s, f.name) for s in several]) for f in fields(cls)})

    def take(self, index: Any) -> Sensitivity:
        """The rows selected by `index` (integers, a slice or a mask)."""
        return Sensitivity(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def with_own_sigma(self, own_sigma: Array) -> Sensitivity:
        """The same rows with other own errors."""
        return replace(self, own_sigma=own_sigma)

    def __len__(self) -> int:
        return len(self.log_step_s)


def step_times(workload: Workload, table: ConfigTable) -> Callable[[Calibration], TimeParts]:
    """The time parts of the configs by constants; what no constant changes is computed once."""
    if workload.rl is not None:
        return lambda constants: estimate_step(workload, table, constants).time_parts_s
    traits = traits_of(workload.trainer)
    layout, stages = layout_of(workload, table), stages_of(workload.model, table, traits.split)

    def at(constants: Calibration) -> TimeParts:
        return time_parts(workload, table, layout, stages, constants, traits)

    return at


def sensitivity(
    workload: Workload, table: ConfigTable, constants: Calibration, names: Sequence[str], number: int = 0
) -> Sensitivity:
    """The configs' step times and their derivatives by the constants `names`; `number`: that of the workload."""
    times = step_times(workload, table)
    here = times(constants)
    log_step_s = np.log(here.total)
    jacobian = np.ones((len(table), len(names) + 1))
    for k, name in enumerate(names):
        lower = replace(constants, **{name: getattr(constants, name) * np.exp(-STEP)})
        jacobian[:, k] = (log_step_s - np.log(times(lower).total)) / STEP
    chance, stalled_s = with_stalls(workload.cluster, layout_of(workload, table), here.total)
    return Sensitivity(
        log_step_s=log_step_s,
        jacobian=jacobian,
        own_sigma=np.asarray(time_sigma(here, constants, workload.model)),
        points=table.coordinates(),
        workloads=np.full(len(table), number, dtype=np.intp),
        layers=np.full(len(table), _layers_of(workload), dtype=np.int64),
        stall_probability=chance,
        stall_log=np.log(stalled_s) - log_step_s,
    )


def _layers_of(workload: Workload) -> int:
    """The same for workloads whose layers are alike, however many these are."""
    shape = [getattr(workload.model, f.name) for f in fields(workload.model) if f.name not in DEPTH]
    return crc32(
        f"{shape} {workload.seq_len} {workload.cluster.gpu.name} {workload.trainer} {workload.peft} {workload.unfused_attention}".encode()
    )
