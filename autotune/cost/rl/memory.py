"""Memory of each phase with what stays of the others; the peak is that of the fullest phase.

generation     of a colocated engine: the told fraction of the device, beside the trainer's weights, gradients and optimizer states that are not in host memory then (`phase_offload`), the
               reference model and the framework's own. Gradients stay where the trainer keeps a buffer for them (Megatron-LM), not where its step frees them
log-prob       the trainer's states, and logits of one micro-batch with their log-softmax; nothing is kept for a backward pass
update         the peak of a plain step on the fullest micro-batch, beside the reference model (in host memory with `phase_offload: all`) and what a sleeping engine keeps

A critic's states stand beside the policy's; one of both is updated at a time. An engine that sleeps gives back its cache and weights and keeps its CUDA context and graphs
(`ENGINE_ASLEEP`; vLLM prints "2.12 GiB memory is still in use" after "Sleep mode freed 63.53 GiB memory").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.layout import Column, layout_of
from autotune.cost.memory import RankMemory
from autotune.cost.parameters import edge_weights, layer_weights
from autotune.cost.rl.knobs import asked_of
from autotune.cost.rl.update import Pass
from autotune.cost.stages import stages_of
from autotune.cost.traits import loop_traits
from autotune.spec import ConfigTable, MemoryParts, Workload

ENGINE_ASLEEP = 2.12 * 2**30
NAMES = tuple(f.name for f in fields(MemoryParts))


def phases_memory(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    updates: Sequence[RankMemory],
    forward: Pass,
    is_split: NDArray[np.bool_],
) -> tuple[MemoryParts, RankMemory]:
    """(the trainer's states between phases, the peak). `updates`: peaks of policy and critic, each alone."""
    asked, traits, constants = asked_of(workload), loop_traits(workload), forward.constants
    nothing = np.zeros(len(table))
    states = [
        {
            "weights": np.asarray(u.parts.weights),
            "gradients": nothing if traits.drops_gradients else np.asarray(u.parts.gradients),
            "optimizer": np.asarray(u.parts.optimizer),
        }
        for u in updates
    ]
    resident = {name: sum((s[name] for s in states), nothing) for name in ("weights", "gradients", "optimizer")}
    away = knobs["phase_offload"] if "phase_offload" in knobs else np.full(len(table), "none")
    has_reference = asked.reference or asked.algorithm == "dpo"
    reference = np.where(away == "all", 0.0, _reference_bytes(workload, table)) if has_reference else nothing
    asleep = np.where(is_split | (not asked.generates), 0.0, ENGINE_ASLEEP)
    phases: list[tuple[dict[str, Column], Column]] = []
    for i, u in enumerate(updates):
        others = {name: resident[name] - states[i][name] for name in resident}
        parts = {name: np.asarray(getattr(u.parts, name)) + others.get(name, nothing) for name in NAMES}
        parts["weights"] = parts["weights"] + reference
        parts["framework"] = parts["framework"] + asleep
        phases.append((parts, u.spare))
    bare = dict.fromkeys(NAMES, nothing)
    if asked.algorithm != "sft":
        own = constants.framework_bytes + asleep
        logits = forward.logits_bytes()
        at_log_prob = {
            **bare,
            **resident,
            "weights": resident["weights"] + reference,
            "logits": logits,
            "framework": own,
        }
        phases.append((at_log_prob, nothing))
    if asked.generates and asked.rollout is not None:
        held = {name: np.where(away == "all", 0.0, resident[name]) for name in resident}
        held["optimizer"] = np.where(away == "none", held["optimizer"], 0.0)
        engine = asked.rollout.memory_fraction * float(workload.cluster.gpu.memory_bytes)
        generating = {
            **bare,
            **held,
            "weights": held["weights"] + reference,
            "framework": constants.framework_bytes + engine,
        }
        phases.append(({name: np.where(is_split, 0.0, part) for name, part in generating.items()}, nothing))
    totals = np.stack([sum(parts.values()) for parts, _ in phases])
    needs = np.stack([sum(parts.values()) - spare for parts, spare in phases])
    fullest = totals.argmax(axis=0)
    peak = {
        name: np.take_along_axis(
            np.stack([np.broadcast_to(p[name], nothing.shape) for p, _ in phases]), fullest[None], axis=0
        )[0]
        for name in NAMES
    }
    between = MemoryParts(**{**bare, **resident})
    return between, RankMemory(parts=MemoryParts(**peak), spare=totals.max(axis=0) - needs.max(axis=0))


def _reference_bytes(workload: Workload, table: ConfigTable) -> Column:
    """Weights of a reference model in 16 bits, which is cut and sharded as the policy is."""
    layout, traits = layout_of(workload, table), loop_traits(workload)
    stages = stages_of(workload.model, table, traits.split)
    most = np.maximum.reduce([stages.first, stages.middle, stages.last])
    dense, experts = layer_weights(workload.model, layout)
    embedding, projection = edge_weights(workload.model, layout, traits.vocab_parallel)
    edges = np.where(layout.pp == 1, embedding + projection, np.maximum(embedding, projection))
    shards = np.where(layout.zero == 3, layout.shard_group.size, 1.0)
    expert_shards = np.where(layout.zero == 3, layout.expert_shard_group.size, 1.0)
    return np.asarray(2.0 * ((most * dense + edges) / shards + most * experts / expert_shards))
