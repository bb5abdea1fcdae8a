"""A config without the knobs that do nothing, so that no trainer is asked for what has no effect.

tp = 1        nothing to shard along the sequence       dp * cp = 1   nothing to shard between replicas
pp = 1        no schedule, no virtual stages            one stage per rank: interleaved 1F1B is 1F1B
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
    """A limit when the knob's value is a key of `can`: the words that cannot be done, each with the nearest that can."""
    value = getattr(config, knob)
    return (Limit(knob=knob, value=value, message=message, nearest=can[value]),) if value in can else ()


def cpu_note(workload: Workload, trainer: str) -> tuple[str, ...]:
    """A note when the config was meant for CPU ranks, and the trainer needs a GPU for each."""
    if not workload.cluster.gpu.is_cpu:
        return ()
    return (f"this config was made for CPU ranks; {trainer} needs a GPU for each of them",)
