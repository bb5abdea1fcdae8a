"""A config with knobs that have no effect set to their neutral value, so that no trainer refuses a config for such a knob.

tp = 1         sequence parallelism has nothing to shard
dp * cp = 1    ZeRO has nothing to shard
pp = 1         no schedule and no virtual stages; interleaved 1F1B with one stage per rank is 1F1B
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.limit import Limit


def effective(config: ParallelConfig) -> ParallelConfig:
    """The same training with neutral values where a knob has no effect."""
    changes: dict[str, Any] = {}
    if config.tp == 1:
        changes["sequence_parallel"] = False
    if config.dp * config.cp == 1:
        changes["zero_stage"] = 0
    if config.pp == 1:
        changes |= {"pp_schedule": "1f1b", "virtual_stages": 1}
    elif config.pp_schedule == "interleaved_1f1b" and config.virtual_stages == 1:
        changes["pp_schedule"] = "1f1b"
    return replace(config, **changes)


def word_limit(config: ParallelConfig, knob: str, can: Mapping[str, Any], message: str) -> tuple[Limit, ...]:
    """A limit if the knob's value is a key of `can`, which maps each value that the trainer cannot express to the nearest that it can."""
    value = getattr(config, knob)
    return (Limit(knob=knob, value=value, message=message, nearest=can[value]),) if value in can else ()


def cpu_note(workload: Workload, trainer: str) -> tuple[str, ...]:
    """A note if the workload's ranks are CPU processes but the trainer needs a GPU for each rank."""
    if not workload.cluster.gpu.is_cpu:
        return ()
    return (f"this config is for CPU ranks, but {trainer} needs a GPU for each rank",)
