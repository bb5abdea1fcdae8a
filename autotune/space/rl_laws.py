"""Rules on post-training, for workloads with `rl`: the generation engine, and micro-batches packed
by tokens.

Sources: verl `rearrange_micro_batches` (the ranks that share a micro-batch must hold the longest
sequence), vLLM (`num_attention_heads` must be divisible by the tensor-parallel size; weights must
fit in `gpu_memory_utilization`). GPUs that only generate do not train.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.space.law import Law, Mask
from autotune.spec import ConfigTable, ParallelConfig, Workload
from autotune.spec.post_training import PostTraining

ENGINE_BYTES = 2.0
"""bytes per weight in the generation engine"""


def asked_of(workload: Workload) -> PostTraining:
    """The workload's post-training settings; it must have them."""
    assert workload.rl is not None
    return workload.rl


def knob_values(workload: Workload, table: ConfigTable, name: str) -> NDArray[Any]:
    """The values of a post-training knob, shape (N,); the workload's setting if the space does not
    have the knob."""
    if name not in table.knobs:
        return np.full(len(table), asked_of(workload).current(name))
    return np.asarray(np.array(table.knobs[name].values)[table.column(name).astype(np.int64)])


def knob_value(workload: Workload, config: ParallelConfig, name: str) -> Any:
    """The value of a post-training knob in a config, or the workload's setting."""
    return config.extra[name] if name in config.extra else asked_of(workload).current(name)


def _generating(workload: Workload, table: ConfigTable) -> NDArray[Any]:
    """Number of GPUs that generate, shape (N,): separate ones, or all training GPUs."""
    separate = knob_values(workload, table, "rollout_gpus")
    return np.asarray(np.where(separate > 0, separate, table.world_size))


def _generates(
    check: Callable[[Workload, ConfigTable], Any],
) -> Callable[[Workload, ConfigTable], Mask]:
    """Restrict a check to workloads that generate responses; it holds for all others."""
    return lambda w, t: (
        np.asarray(check(w, t)) if asked_of(w).generates else np.ones(len(t), dtype=np.bool_)
    )


ALONE = ("openrlhf",)
"""trainers that put a sequence longer than a micro-batch into a micro-batch of its own (OpenRLHF:
`utils/seqlen_balancing.py`)"""


def _holds_longest(workload: Workload, table: ConfigTable, name: str) -> Mask:
    tokens = knob_values(workload, table, name)
    if workload.trainer in ALONE:
        return np.ones(len(table), dtype=np.bool_)
    return np.asarray((tokens == 0) | (tokens * table.cp >= asked_of(workload).longest))


def _has_known_speed(workload: Workload, tp: NDArray[Any]) -> Mask:
    rollout = asked_of(workload).rollout
    return np.array(
        [rollout is not None and rollout.rate(int(degree)) is not None for degree in tp],
        dtype=np.bool_,
    )


def _known_degrees(workload: Workload) -> str:
    rollout = asked_of(workload).rollout
    return ", ".join(str(tp) for tp, _ in rollout.tokens_per_s_per_gpu) if rollout else "none"


def _engine_fits(workload: Workload, table: ConfigTable) -> Mask:
    rollout = asked_of(workload).rollout
    share = 0.0 if rollout is None else rollout.memory_fraction
    weights = (
        ENGINE_BYTES * workload.model.num_parameters / knob_values(workload, table, "rollout_tp")
    )
    return np.asarray((share == 0.0) | (weights <= share * workload.cluster.gpu.memory_bytes))


def _longest_law(knob: str) -> Law:
    return Law(
        name=f"rl_{knob}",
        broken=f"{knob} cannot hold the longest sequence",
        fields=(knob, "cp"),
        check=lambda w, t: _holds_longest(w, t, knob),
        reason=lambda w, c: (
            f"a micro-batch must hold the longest sequence, but {knob}={knob_value(w, c, knob)} x cp={c.cp} is less than the sequence's {asked_of(w).longest:,} tokens; "
            f"use {-(-asked_of(w).longest // c.cp):,} or more, or a larger cp"
        ),
    )


RL_LAWS: tuple[Law, ...] = (
    Law(
        name="rl_split",
        broken="generation and training GPUs together exceed the cluster",
        fields=("rollout_gpus", "tp", "pp", "dp", "cp"),
        check=_generates(
            lambda w, t: t.world_size + knob_values(w, t, "rollout_gpus") <= w.cluster.num_gpus
        ),
        reason=lambda w, c: (
            f"{c.world_size} training GPUs and rollout_gpus={knob_value(w, c, 'rollout_gpus')} must fit the cluster, but {w.cluster.name} has {w.cluster.num_gpus}; "
            "use fewer GPUs for training or for generation"
        ),
    ),
    Law(
        name="rl_placement",
        broken="staleness without GPUs that only generate",
        fields=("rollout_gpus", "staleness", "tp"),
        check=_generates(
            lambda w, t: (
                (knob_values(w, t, "rollout_gpus") > 0) | (knob_values(w, t, "staleness") == 0)
            )
        ),
        reason=lambda w, c: (
            f"with rollout_gpus=0, engine and trainer alternate, so staleness must be 0, but staleness={knob_value(w, c, 'staleness')}; "
            "use staleness=0, or rollout_gpus above 0"
        ),
    ),
    Law(
        name="rl_engines",
        broken="rollout_tp does not divide the generation GPUs or the attention heads",
        fields=("rollout_tp", "rollout_gpus", "tp", "pp", "dp", "cp"),
        check=_generates(
            lambda w, t: (
                (_generating(w, t) % knob_values(w, t, "rollout_tp") == 0)
                & (w.model.num_attention_heads % knob_values(w, t, "rollout_tp") == 0)
            )
        ),
        reason=lambda w, c: (
            f"rollout_tp must divide the generation GPUs and the attention heads, but rollout_tp={knob_value(w, c, 'rollout_tp')}, "
            f"GPUs={knob_value(w, c, 'rollout_gpus') or c.world_size} and num_attention_heads={w.model.num_attention_heads}"
        ),
    ),
    Law(
        name="rl_told",
        broken="the spec gives no generation speed for this rollout_tp",
        fields=("rollout_tp", "tp"),
        check=_generates(lambda w, t: _has_known_speed(w, knob_values(w, t, "rollout_tp"))),
        reason=lambda w, c: (
            f"the generation speed of rollout_tp={knob_value(w, c, 'rollout_tp')} is not modeled, and rollout.tokens_per_s_per_gpu only has tp={_known_degrees(w)}; measure the speed and set rollout.tokens_per_s_per_gpu to {{TP: TOKENS_PER_S, ...}}"
        ),
    ),
    Law(
        name="rl_engine_memory",
        broken="the engine's weights do not fit into its share of GPU memory",
        fields=("rollout_tp", "tp"),
        check=_generates(_engine_fits),
        reason=lambda w, c: (
            f"the engine's weights must fit into rollout.memory_fraction of a GPU, but {w.model.num_parameters:,} weights split across rollout_tp={knob_value(w, c, 'rollout_tp')} GPUs do not; "
            "use a larger rollout_tp or memory_fraction"
        ),
    ),
    Law(
        name="rl_micro_batch",
        broken="micro_batch_size with micro-batches packed by tokens",
        fields=("micro_batch_tokens", "micro_batch_size"),
        check=lambda w, t: np.asarray(
            (knob_values(w, t, "micro_batch_tokens") == 0) | (t.micro_batch_size == 1)
        ),
        reason=lambda w, c: (
            f"micro-batches are packed up to micro_batch_tokens={knob_value(w, c, 'micro_batch_tokens')}, so micro_batch_size must be 1, but "
            f"micro_batch_size={c.micro_batch_size}; use micro_batch_size=1, or micro_batch_tokens=0"
        ),
    ),
    _longest_law("micro_batch_tokens"),
    _longest_law("log_prob_micro_batch_tokens"),
)
"""rules for workloads with `rl`; knobs that the study does not list have the workload's settings"""
