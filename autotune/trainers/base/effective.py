"""A config with knobs that have no effect set to their neutral value, so that no trainer rejects a
config because of such a knob.

tp = 1            sequence parallelism has nothing to shard; asynchronous tensor parallelism nothing
to overlap cp = 1            no style of context parallelism ep = 1            no dispatcher, and no
all-to-all to hide dp * cp = 1       ZeRO has nothing to shard zero_stage = 0    no copies of shards
pp = 1            no schedule, no virtual stages and no split; interleaved 1F1B with one stage per
rank is 1F1B compile = false   no compiler with an activation budget
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from autotune.spec import ParallelConfig, Workload
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.limit import Limit


@lru_cache(maxsize=64)
def effective(config: ParallelConfig) -> ParallelConfig:
    """The same training with neutral values for knobs without effect."""
    is_one_replica = config.dp * config.cp == 1
    is_chunked = config.pp_schedule == "interleaved_1f1b" and config.virtual_stages > 1
    cases: tuple[tuple[bool, dict[str, Any]], ...] = (
        (config.tp == 1, {"sequence_parallel": False}),
        (config.tp == 1 or not config.sequence_parallel, {"async_tp": False}),
        (config.cp == 1, {"cp_style": "ring"}),
        (config.ep == 1, {"dispatcher": "alltoall", "ep_overlap": False}),
        (is_one_replica, {"zero_stage": 0}),
        (is_one_replica or config.zero_stage == 0, {"dp_replicas": 1}),
        (not config.compile, {"activation_budget": 100}),
        (config.pp == 1, {"pp_schedule": "1f1b", "virtual_stages": 1, "pp_split": "layers"}),
        (config.pp_schedule == "interleaved_1f1b" and not is_chunked, {"pp_schedule": "1f1b"}),
    )
    neutral = ChainMap(*(knobs for applies, knobs in cases if applies))
    changes = {name: value for name, value in neutral.items() if getattr(config, name) != value}
    return replace(config, **changes) if changes else config


def word_limit(
    config: ParallelConfig, knob: str, can: Mapping[str, Any], message: str
) -> tuple[Limit, ...]:
    """A limit if the knob's value is a key of `can`, which maps values that the trainer cannot
    express to the nearest ones that it can; or else empty."""
    value = getattr(config, knob)
    return (
        (Limit(knob=knob, value=value, message=message, nearest=can[value]),)
        if value in can
        else ()
    )


def whole_on_cpu(workload: Workload, config: ParallelConfig) -> tuple[Limit, ...]:
    """A limit of accelerate, and of libraries that build on it: on CPU ranks, accelerate replicates
    the weights, whatever sharding is set."""
    if not (workload.cluster.gpu.is_cpu and config.zero_stage):
        return ()
    message = "accelerate shards only on GPUs, and would keep whole weights on CPU ranks"
    return (Limit(knob="zero_stage", value=config.zero_stage, message=message, nearest=0),)


def cpu_note(workload: Workload, trainer: str) -> tuple[str, ...]:
    """A note if the workload's ranks are CPU processes but the trainer needs a GPU for each
    rank."""
    return notes_of((
        workload.cluster.gpu.is_cpu,
        f"this config is for CPU ranks, but {trainer} needs a GPU for each rank",
    ))  # fmt: skip
