"""The estimate of one config or of many: the same code on columns, computed in blocks to bound memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.compute import peak_flops_per_s
from autotune.cost.flops import training_flops_per_token
from autotune.cost.from_dry_runs import corrected_memory
from autotune.cost.layout import layout_of
from autotune.cost.memory import RankMemory, fullest, rank_memories
from autotune.cost.model_knobs import COST_MODEL
from autotune.cost.rl.step import estimate_step
from autotune.cost.stages import stages_of
from autotune.cost.stalls import with_stalls
from autotune.cost.step_time import time_parts
from autotune.cost.traits import traits_of
from autotune.cost.uncertainty import interval, memory_sigma, time_sigma, upper_end
from autotune.errors import ConfigError
from autotune.space import LAWS
from autotune.spec import ConfigTable, Estimate, MemoryParts, ParallelConfig, TimeParts, Workload
from autotune.spec.estimate import PhaseParts

_SHAPE_LAWS = tuple(
    law
    for law in LAWS
    if law.name in ("tp_heads", "pp_layers", "cp_sequence", "cp_heads", "replicas_divide", "ep_experts")
)
BLOCK = 1 << 15
"""rows that are computed at once, so that their columns stay in the processor's cache"""


def estimate(
    workload: Workload,
    configs: ParallelConfig | Iterable[ParallelConfig] | ConfigTable,
    *,
    calibration: Calibration | None = None,
) -> Estimate:
    """Predicted step time and peak memory of one config (floats) or of many (arrays of shape (N,)), with their parts and error bars.

    `calibration` defaults to the constants for the workload's GPU type and trainer. Raises `ConfigError` for a config that does not fit the shape of
    the model (tp does not divide the heads, more stages than layers, a sequence shorter than cp), for counts below 1, and for values that
    are not configs. Rows of a `ConfigTable` are not checked against the laws: a space has applied them, and measured configs may be replayed.
    """
    constants = calibration or calibration_for(workload)
    if isinstance(configs, ParallelConfig):
        return _block(workload, _lawful(workload, [configs]), constants).row(0)
    table = configs if isinstance(configs, ConfigTable) else _lawful(workload, configs)
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


def _lawful(workload: Workload, configs: Iterable[ParallelConfig]) -> ConfigTable:
    """The table of these configs. Raises `ConfigError` for one that does not fit the shape of the model."""
    if isinstance(configs, str) or not isinstance(configs, Iterable):
        raise ConfigError(
            f"configs must be ParallelConfigs, but are {configs!r}", remedy="ParallelConfig.parse reads tp=2,pp=1,..."
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
        broken = np.flatnonzero(~law.check(workload, table))
        if len(broken):
            raise ConfigError(law.reason(workload, rows[broken[0]]))
    return table


def _block(workload: Workload, table: ConfigTable, constants: Calibration) -> Estimate:
    COST_MODEL.check_table(table)
    if workload.rl is not None:
        return estimate_step(workload, table, constants)
    traits = traits_of(workload.trainer)
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
    reference = peak_flops_per_s(workload, table)
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
    """The same columns with so many rows, not filled in."""
    values = [(f.name, value) for f in fields(block) if (value := getattr(block, f.name)) is not None]
    columns: dict[str, Any] = {
        name: np.empty(rows) if isinstance(value, np.ndarray) else _empty_like(value, rows) for name, value in values
    }
    return type(block)(**columns)


def _write(whole: Columns, start: int, block: Columns) -> None:
    """Copies a block while it is still in the processor's cache."""
    for f in fields(block):
        to, value = getattr(whole, f.name), getattr(block, f.name)
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            to[start : start + len(value)] = value
        else:
            _write(to, start, value)
