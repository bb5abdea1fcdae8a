"""Estimates one config or many with the same code on columns, in blocks to limit memory.

Sensitivity: derivatives of the predicted step times with respect to the constants of the cost
model.

    J_ik = d log f_i / d log theta_k        by finite differences of 4% in each constant

An element of J is about the share of the step that depends on the constant, with the sign of its
effect. The last column is that of the level, whose derivative is 1. Differences are taken downward,
so that no fraction exceeds 1. Each constant takes one evaluation of the step times, about 10 ms for
a hundred configs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration, calibration_for, with_columns
from autotune.cost.layout import layout_of, stages_of, training_flops_per_token
from autotune.cost.learn.from_dry_runs import corrected_memory
from autotune.cost.learn.uncertainty import interval, memory_sigma, time_sigma, upper_end
from autotune.cost.memory.peak import RankMemory, fullest, rank_memories
from autotune.cost.model_knobs import COST_MODEL
from autotune.cost.rl.step import estimate_step
from autotune.cost.rl.step import step_times as rl_step_times
from autotune.cost.time.compute import mfu_peak_flops_per_s
from autotune.cost.time.stalls import with_stalls
from autotune.cost.time.step import time_parts
from autotune.cost.traits import loop_traits
from autotune.errors import ConfigError
from autotune.space import LAWS
from autotune.spec import ConfigTable, Estimate, MemoryParts, ParallelConfig, TimeParts, Workload
from autotune.spec.estimate import PhaseParts

_SHAPE_LAWS = tuple(
    law
    for law in LAWS
    if law.name
    in (
        "world_size",
        "tp_heads",
        "pp_layers",
        "cp_sequence",
        "cp_heads",
        "replicas_divide",
        "ep_experts",
    )
)
"""rules without which the formulas are meaningless: more ranks than GPUs, fractions of a head"""
BLOCK = 1 << 15
"""number of rows computed at once, so that their columns stay in the processor's cache"""


def estimate(
    workload: Workload,
    configs: ParallelConfig | Iterable[ParallelConfig] | ConfigTable,
    *,
    calibration: Calibration | None = None,
) -> Estimate:
    """Return the predicted step time and peak memory of one config (floats) or of many (arrays of
    shape (N,)), with their parts and error bars.

    `calibration` defaults to the constants for the workload's GPU type and trainer. Raises
    `ConfigError` for a config that does not fit the cluster (more ranks than GPUs) or the shape of
    the model (tp does not divide the heads, more stages than layers, a sequence shorter than cp),
    for counts below 1, and for values that are not configs. Rows of a `ConfigTable` are not checked
    against the rules, because a space has applied them and measured configs may be replayed.
    """
    constants = calibration or calibration_for(workload)
    if isinstance(configs, ParallelConfig):
        return _block(workload, _valid(workload, [configs]), constants).row(0)
    table = configs if isinstance(configs, ConfigTable) else _valid(workload, configs)
    table.check_counts()
    if len(table) <= BLOCK:
        return _block(workload, table, constants)
    whole = None
    for start in range(0, len(table), BLOCK):
        block = _block(workload, table.take(slice(start, start + BLOCK)), constants)
        if whole is None:
            whole = _empty_like(block, len(table))
        _write(whole, start, block)
    assert whole is not None
    return whole


def _valid(workload: Workload, configs: Iterable[ParallelConfig]) -> ConfigTable:
    """Return the table of these configs. Raises `ConfigError` if one does not fit the cluster or
    the shape of the model."""
    if isinstance(configs, str) or not isinstance(configs, Iterable):
        raise ConfigError(
            f"configs must be ParallelConfigs, but are {configs!r}",
            remedy="ParallelConfig.parse reads tp=2,pp=1,...",
        )
    rows = list(configs)
    for row in rows:
        if not isinstance(row, ParallelConfig):
            raise ConfigError(
                f"configs must be ParallelConfigs, but one is {row!r}",
                remedy="use ParallelConfig.from_dict or ParallelConfig.parse",
            )
    table = ConfigTable.of(rows)
    for law in _SHAPE_LAWS:
        invalid = np.flatnonzero(~law.check(workload, table))
        if len(invalid):
            raise ConfigError(law.reason(workload, rows[invalid[0]]))
    return table


def _block(workload: Workload, table: ConfigTable, constants: Calibration) -> Estimate:
    """Return the estimate of all rows at once."""
    COST_MODEL.check_table(table)
    if workload.rl is not None:
        return estimate_step(workload, table, constants)
    traits = loop_traits(workload)
    layout = layout_of(workload, table)
    stages = stages_of(workload.model, table, traits.split)
    times = time_parts(workload, table, layout, stages, constants, traits)

    def by_formulas(rows: ConfigTable) -> RankMemory:
        where = (
            (layout, stages)
            if rows is table
            else (layout_of(workload, rows), stages_of(workload.model, rows, traits.split))
        )
        return fullest(rank_memories(workload, rows, *where, constants, traits))

    by_runs = corrected_memory(workload, table, constants, by_formulas)
    memory = by_runs.memory if by_runs else by_formulas(table)
    spread = by_runs.sigma if by_runs else memory_sigma(memory.parts, constants, workload.model)
    step = times.total
    tokens = layout.micro_batch * layout.accumulation * layout.dp * float(workload.seq_len)
    per_gpu = tokens / step / layout.world
    reference = mfu_peak_flops_per_s(workload, table, constants)
    level_sigma = np.full_like(step, constants.level_sigma)
    sigma = np.hypot(time_sigma(times, constants, workload.model), level_sigma)
    low, _ = interval(step, sigma)
    chance, stalled = with_stalls(workload.cluster, layout, step)
    high = upper_end(step, sigma, stalled, chance)
    return Estimate(
        step_time_s=step,
        step_time_low_s=low,
        step_time_high_s=high,
        time_parts_s=times,
        tokens_per_s=tokens / step,
        tokens_per_s_per_gpu=per_gpu,
        mfu=per_gpu * training_flops_per_token(workload) / reference,
        **memory.columns(spread, workload.cluster.gpu, constants),
        mfu_peak_flops_per_s=reference,
        level=np.ones_like(step),
        level_sigma=level_sigma,
        stall_probability=chance,
        stalled_step_time_s=stalled,
    )


Columns = TypeVar("Columns", Estimate, TimeParts, MemoryParts, PhaseParts)


def _empty_like(block: Columns, rows: int) -> Columns:
    """Return the same columns with `rows` uninitialized rows."""
    values = [
        (f.name, value) for f in fields(block) if (value := getattr(block, f.name)) is not None
    ]
    columns: dict[str, Any] = {
        name: np.empty(rows) if isinstance(value, np.ndarray) else _empty_like(value, rows)
        for name, value in values
    }
    return type(block)(**columns)


def _write(whole: Columns, start: int, block: Columns) -> None:
    """Copy a block into the whole, while it is still in the processor's cache."""
    for f in fields(block):
        to, value = getattr(whole, f.name), getattr(block, f.name)
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            to[start : start + len(value)] = value
        else:
            _write(to, start, value)


Array = NDArray[np.float64]

STEP = 0.04
"""finite difference in the log of a constant"""

DEPTH = ("name", "source", "num_layers", "num_dense_layers", "dense_ffn_hidden_size", "mtp_layers")
"""fields in which models with the same layers may differ"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Predicted step times of n configs, and their derivatives by K constants and the level."""

    log_step_s: Array
    """ln of the predicted step time in s, shape (n,)"""
    jacobian: Array
    """J, shape (n, K + 1)"""
    own_sigma: Array
    """standard deviation of the own error, shape (n,)"""
    points: Array
    """coordinates of the configs, shape (n, d)"""
    workloads: NDArray[np.intp]
    """index of each config's workload, shape (n,)"""
    layers: NDArray[np.int64]
    """hash of each config's kind of layer: equal for the same trainer, GPU, sequence length and
    shape of a layer, shape (n,)"""
    stall_probability: Array
    """probability that sends of the config stall, shape (n,)"""
    stall_log: Array
    """ln of the factor by which a stall lengthens the step, shape (n,)"""

    @classmethod
    def joined(cls, several: Sequence[Sensitivity]) -> Sensitivity:
        """Return the rows of all, concatenated."""
        return cls(
            **{f.name: np.concatenate([getattr(s, f.name) for s in several]) for f in fields(cls)}
        )

    def take(self, index: Any) -> Sensitivity:
        """Return the rows selected by `index` (integers, a slice or a mask)."""
        return Sensitivity(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def __len__(self) -> int:
        return len(self.log_step_s)


def step_times(workload: Workload, table: ConfigTable) -> Callable[[Calibration], TimeParts]:
    """Return a function from constants to the time parts of the configs. Values that do not depend
    on the constants are computed once."""
    if workload.rl is not None:
        return rl_step_times(workload, table)
    traits = loop_traits(workload)
    layout, stages = layout_of(workload, table), stages_of(workload.model, table, traits.split)

    def at(constants: Calibration) -> TimeParts:
        return time_parts(workload, table, layout, stages, constants, traits)

    return at


def step_times_by(
    workload: Workload, table: ConfigTable, constants: Calibration, columns: Mapping[str, Array]
) -> Array:
    """Return the step times for M sets of constants, s, shape (M, N). `columns`: the constants in
    which the sets differ, shape (M,) each.

    As many sets as fit into a block are computed at once, on a table that repeats the configs for
    each set, because the formulas take as long for a few configs as for hundreds.
    """
    sets, rows = len(next(iter(columns.values()))), len(table)
    times, sets_per_block = [], max(BLOCK // rows, 1)
    for start in range(0, sets, sets_per_block):
        chunk = {name: column[start : start + sets_per_block] for name, column in columns.items()}
        count = min(sets_per_block, sets - start)
        repeated = table.take(np.tile(np.arange(rows), count))
        repeated_constants = with_columns(
            constants, {name: np.repeat(column, rows) for name, column in chunk.items()}
        )
        times.append(step_times(workload, repeated)(repeated_constants).total.reshape(count, rows))
    return np.concatenate(times)


def one_by_one(constants: Calibration, moved: Mapping[str, Sequence[float]]) -> dict[str, Array]:
    """Return columns for sets of constants that each change a single constant. `moved`: the changed
    values by name, one set per value, in order."""
    sets = sum(map(len, moved.values()))
    columns, start = {}, 0
    for name, values in moved.items():
        columns[name] = np.full(sets, getattr(constants, name))
        columns[name][start : start + len(values)] = values
        start += len(values)
    return columns


def sensitivity(
    workload: Workload,
    table: ConfigTable,
    constants: Calibration,
    names: Sequence[str],
    number: int = 0,
) -> Sensitivity:
    """Return the step times of the configs and their derivatives by the constants `names`.
    `number`: index of the workload."""
    here = step_times(workload, table)(constants)
    log_step_s = np.log(here.total)
    jacobian = np.ones((len(table), len(names) + 1))
    if names:
        lower = one_by_one(
            constants, {name: (getattr(constants, name) * np.exp(-STEP),) for name in names}
        )
        log_lower_s = np.log(step_times_by(workload, table, constants, lower))
        jacobian[:, :-1] = (log_step_s - log_lower_s).T / STEP
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
    """Return the hash of a workload's kind of layer, independent of the number of layers."""
    shape = [getattr(workload.model, f.name) for f in fields(workload.model) if f.name not in DEPTH]
    attention = f"{workload.unfused_attention}{workload.attention_kernel}"
    return crc32(
        f"{shape} {workload.seq_len} {workload.cluster.gpu.name} {workload.trainer} {workload.peft} {attention}{workload.loop}".encode()
    )
