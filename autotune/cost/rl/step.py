"""Time and memory of a post-training step by its phases.

    G  generation: response tokens / (stated tokens per second per GPU * generating GPUs). If the speed of a single response is stated, at least the time of the longest: G = bulk + tail
    U  the trainer's phases: log-probabilities of policy and reference, values, the update of policy and critic, copies of states to the host and back

colocated     reward + G + U + refit
split         the same, one side after the other: one waits while the other works
async         the trainer updates on responses of a policy that is s steps old. Generation continues meanwhile, up to s steps ahead: the share 1 - s of the next step's responses is left when the
              update ends (Noukhovitch et al., arXiv 2410.18252, s = 1; verl: `staleness_threshold`). If s > 0, the tail of one step overlaps with the next step:
                  s = 0     G + U                    0 < s < 1     max(bulk, U + (1 - s) * bulk)                    s >= 1     max(bulk, U)
              plus the refit, during which both sides stop

The phases are seconds of the trainer's clock and add up to the step: in `async`, `generation` is 0
and `waiting` is the trainer's wait for responses. The time parts of the estimate are those of U by
cause; everything that the workload states, is sent or waited for is in `other`. The error bars are
those of the update; stated times have no error.

Knobs of post-training are columns: the study's own knobs with those names, else the workload's
current values.

Memory of each phase includes what the other phases leave on the device; the peak is that of the
phase with the highest one.

generation     of a colocated engine: the stated fraction of the device, plus the trainer's weights, gradients and optimizer states that are not in host memory (`phase_offload`), the
               reference model and the framework. Gradients stay if the trainer keeps a buffer for them (Megatron-LM), not if its step frees them
log-prob       the trainer's states, the reference model, and logits of one micro-batch with their log-softmax; nothing is kept for a backward pass
update         the peak of a plain step on the largest micro-batch, plus the reference model (in host memory with `phase_offload: all` and `reference_offload`) and the memory of the sleeping engine, or all memory of one that never sleeps

With adapters, the policy without them is the reference model, except in OpenRLHF, which loads a
separate one (`ReferenceModelActor` in trainer/ray/launcher.py).

The states of a critic are added to the policy's; they are updated one after the other. A sleeping
engine frees its cache and weights but keeps its CUDA context and graphs (`ENGINE_ASLEEP`; vLLM
prints "2.12 GiB memory is still in use" after "Sleep mode freed 63.53 GiB memory").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import (
    Column,
    edge_weights,
    layer_attention_flops,
    layer_matmul_flops,
    layer_weights,
    layout_of,
    stages_of,
    training_flops_per_token,
)
from autotune.cost.learn.uncertainty import Z90, interval, memory_sigma, time_sigma
from autotune.cost.memory.peak import RankMemory
from autotune.cost.rl.packing import Packed, packed
from autotune.cost.rl.update import Pass, copied_s, refit_s
from autotune.cost.time.compute import mfu_peak_flops_per_s
from autotune.cost.traits import loop_traits
from autotune.space.rl_laws import asked_of, knob_values
from autotune.spec import (
    ConfigTable,
    Estimate,
    MemoryParts,
    ModelSpec,
    ParallelConfig,
    TimeParts,
    Workload,
)
from autotune.spec.estimate import PhaseParts
from autotune.spec.post_training import TRAINED


def _knobs_of(workload: Workload, table: ConfigTable) -> dict[str, NDArray[Any]]:
    """Return columns of all post-training knobs by name, shape (N,) each."""
    return {name: knob_values(workload, table, name) for name in asked_of(workload).knob_names}


ENGINE_ASLEEP = 2.12 * 2**30
"""memory of a sleeping vLLM engine, bytes (see above)"""
OWN_REFERENCE = "openrlhf"
"""the trainer that loads a reference model in addition to adapters"""
NAMES = tuple(f.name for f in fields(MemoryParts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseMemory:
    """Memory of one phase on a rank, including what other phases leave there, bytes."""

    parts: dict[str, Column]
    """bytes, by the names of `MemoryParts`"""
    spare: Column
    unsure: Column | float
    given: Column | float
    """bytes that the workload states, which have no error of their own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Memory that stays on a rank across phases, bytes."""

    states: Sequence[dict[str, Column]]
    """weights, gradients and optimizer states between phases, of policy and critic"""
    away: NDArray[Any]
    """which states are in host memory during generation (`phase_offload`)"""
    scoring: Column
    """reference model while it computes log-probabilities"""
    reference: Column
    """reference model during all other phases"""
    engine: Column
    """colocated engine while it generates"""
    awake: Column
    """colocated engine during other phases, if it never sleeps, else 0"""
    asleep: Column
    """colocated engine during other phases"""

    @property
    def resident(self) -> dict[str, Column]:
        """The states of policy and critic, added up."""
        nothing = np.zeros_like(self.scoring)
        return {name: sum((s[name] for s in self.states), nothing) for name in _STATES}


_STATES = ("weights", "gradients", "optimizer")


def phases_memory(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    updates: Sequence[RankMemory],
    forward: Pass,
    is_split: NDArray[np.bool_],
) -> tuple[MemoryParts, RankMemory, Column]:
    """Return (the trainer's states between phases, the peak, the standard deviation of its
    logarithm). `updates`: peaks of policy and critic, each alone.

    The memory of an engine is stated and has no error. The standard deviation is such that the
    upper end of the 90% interval is the highest one of all phases.
    """
    asked, framework = asked_of(workload), forward.constants.framework_bytes
    held = _held(workload, table, knobs, updates, is_split)
    nothing, resident = np.zeros(len(table)), held.resident
    bare = dict.fromkeys(NAMES, nothing)
    phases = _update_phases(held, updates, nothing)
    if asked.algorithm != "sft":
        scored = {
            **bare,
            **resident,
            "weights": resident["weights"] + held.scoring,
            "logits": forward.logits_bytes(),
            "framework": framework + held.asleep,
        }
        phases.append(_PhaseMemory(parts=scored, spare=nothing, unsure=nothing, given=held.awake))
    if asked.generates and asked.rollout is not None:
        stays = {name: np.where(held.away == "all", 0.0, resident[name]) for name in resident}
        stays["optimizer"] = np.where(held.away == "none", stays["optimizer"], 0.0)
        generating = {
            **bare,
            **stays,
            "weights": stays["weights"] + held.reference,
            "framework": framework + held.engine,
        }
        phases.append(
            _PhaseMemory(parts=generating, spare=nothing, unsure=nothing, given=held.engine)
        )
    peaks, spread = _fullest_phase(phases, forward.constants, workload.model)
    return MemoryParts(**{**bare, **resident}), peaks, spread


def _held(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    updates: Sequence[RankMemory],
    is_split: NDArray[np.bool_],
) -> _Held:
    asked, traits, nothing = asked_of(workload), loop_traits(workload), np.zeros(len(table))
    states = [
        {
            "weights": np.asarray(u.parts.weights),
            "gradients": nothing if traits.drops_gradients else np.asarray(u.parts.gradients),
            "optimizer": np.asarray(u.parts.optimizer),
        }
        for u in updates
    ]
    away = knobs["phase_offload"] if "phase_offload" in knobs else np.full(len(table), "none")
    scoring = nothing
    if asked.reference and (workload.peft is None or workload.trainer == OWN_REFERENCE):
        scoring = np.where(away == "all", 0.0, _reference_bytes(workload, table))
    share = asked.rollout.memory_fraction if asked.rollout is not None else 0.0
    engine = np.where(is_split, 0.0, share * float(workload.cluster.gpu.memory_bytes))
    awake = engine if asked.rollout is not None and not asked.rollout.sleeps else nothing
    asleep = np.where(is_split | (not asked.generates), 0.0, np.maximum(awake, ENGINE_ASLEEP))
    return _Held(
        states=states,
        away=away,
        scoring=scoring,
        reference=nothing if asked.reference_offload else scoring,
        engine=engine,
        awake=awake,
        asleep=asleep,
    )


def _update_phases(
    held: _Held, updates: Sequence[RankMemory], nothing: Column
) -> list[_PhaseMemory]:
    """Return the update phases of policy and critic, each including the other's states."""
    resident, phases = held.resident, []
    for states, update in zip(held.states, updates, strict=True):
        others = {name: resident[name] - states[name] for name in resident}
        parts = {
            name: np.asarray(getattr(update.parts, name)) + others.get(name, nothing)
            for name in NAMES
        }
        parts["weights"] = parts["weights"] + held.reference
        parts["framework"] = parts["framework"] + held.asleep
        phases.append(
            _PhaseMemory(parts=parts, spare=update.spare, unsure=update.unsure, given=held.awake)
        )
    return phases


def _fullest_phase(
    phases: Sequence[_PhaseMemory], constants: Calibration, model: ModelSpec
) -> tuple[RankMemory, Column]:
    """Return (the phase with the highest peak in each row, the standard deviation of the logarithm
    of that peak)."""
    totals = np.stack([sum(phase.parts.values()) for phase in phases])
    rows = totals.shape[1:]
    needs, ends = [], []
    for phase, total in zip(phases, totals, strict=True):
        sigma = memory_sigma(MemoryParts(**phase.parts), constants, model)
        ends.append(interval(total, sigma * (1.0 - phase.given / total))[1])
        needs.append(total - phase.spare)
    spread = np.log(np.max(ends, axis=0) / totals.max(axis=0)) / Z90
    unsure = np.stack([np.broadcast_to(phase.unsure, rows) for phase in phases])
    least, most = (np.stack(needs) - unsure).max(axis=0), np.max(needs, axis=0)
    fullest = totals.argmax(axis=0)[None]

    def at_peak(name: str) -> Column:
        each = np.stack([np.broadcast_to(phase.parts[name], rows) for phase in phases])
        return np.asarray(np.take_along_axis(each, fullest, axis=0)[0])

    parts = MemoryParts(**{name: at_peak(name) for name in NAMES})
    peak = RankMemory(parts=parts, spare=totals.max(axis=0) - most, unsure=most - least)
    return peak, np.asarray(spread)


def _reference_bytes(workload: Workload, table: ConfigTable) -> Column:
    """Return the bytes of a reference model's weights on a rank, partitioned like the policy's: in
    16 bits, or in fp32 for the native loop and for transformers' Trainer with fp32 weights, whose
    type it has (trl, `DPOTrainer`)."""
    layout, traits = layout_of(workload, table), loop_traits(workload)
    stages = stages_of(workload.model, table, traits.split)
    most = np.maximum.reduce([stages.first, stages.middle, stages.last])
    dense, experts = layer_weights(workload.model, layout)
    embedding, projection = edge_weights(workload.model, layout, traits.vocab_parallel)
    edges = np.where(layout.pp == 1, embedding + projection, np.maximum(embedding, projection))
    shards = np.where(layout.zero == 3, layout.shard_group.size, 1.0)
    expert_shards = np.where(layout.zero == 3, layout.expert_shard_group.size, 1.0)
    is_fp32 = workload.loop == "hf_trainer" and not workload.pure_bf16
    size = 4.0 if workload.trainer == "native" or is_fp32 else 2.0
    return np.asarray(size * ((most * dense + edges) / shards + most * experts / expert_shards))


_PACKS = ("balance", "group_by_length", "micro_batch_tokens", "log_prob_micro_batch_tokens")


def packed_rows(
    workload: Workload, table: ConfigTable, knobs: dict[str, NDArray[Any]]
) -> tuple[Packed, Packed]:
    """Return (packing of the update's mini-batches, packing of the whole batch for forward passes)
    of every row, as columns. Rows with the same packing are simulated once."""
    meets = (table.zero_stage == 3) | (table.ep > 1)
    columns: dict[str, NDArray[Any]] = {
        "dp": table.dp, "cp": table.cp, "micro_batch_size": table.micro_batch_size, "meets": meets,
        **{name: knobs[name] for name in _PACKS if name in knobs},
    }  # fmt: skip
    codes = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in columns.values()]
    _, first, kind = np.unique(
        np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
    )
    kinds = [
        passes_of(workload, {name: column[row].item() for name, column in columns.items()})
        for row in first
    ]
    in_update, in_forward = (
        Packed.of_rows(some, kind.reshape(-1)) for some in zip(*kinds, strict=True)
    )
    return in_update, in_forward


def attention_share(model: ModelSpec) -> float:
    """Return kappa: attention FLOPs per token and attended token, divided by the FLOPs of matrix
    products per token."""
    return layer_attention_flops(model, 1.0) / layer_matmul_flops(model)


def passes_of(workload: Workload, chosen: dict[str, Any]) -> tuple[Packed, Packed]:
    """Return (packing of the update's mini-batches, packing of the whole batch for forward passes)
    for rows with these values."""
    asked, kappa = asked_of(workload), attention_share(workload.model)
    tokens = int(chosen.get("micro_batch_tokens", asked.micro_batch_tokens)) * chosen["cp"]
    before = (
        int(chosen.get("log_prob_micro_batch_tokens", asked.log_prob_micro_batch_tokens))
        * chosen["cp"]
        or tokens
    )

    def one(mini_batches: int, capacity: int) -> Packed:
        return packed(
            asked, ranks=chosen["dp"], mini_batches=mini_batches, micro_batch=chosen["micro_batch_size"], capacity=capacity,
            balance=chosen.get("balance", asked.balance), meets_each=chosen["meets"], kappa=kappa,
            sorted_by_length=bool(chosen.get("group_by_length", asked.group_by_length)),
        )  # fmt: skip

    return one(asked.mini_batches, tokens), one(1, before)


@dataclass(frozen=True, slots=True)
class _Passes:
    """The forward and update passes of all rows."""

    policy: Pass
    """update of the policy"""
    before: Pass
    """forward passes of the policy without gradients, over the whole batch"""
    values: Pass | None
    """forward pass of the critic; None without one"""
    critic: Pass | None
    """update of the critic; None without one"""

    @classmethod
    def of(
        cls,
        workload: Workload,
        table: ConfigTable,
        packed: tuple[Packed, Packed],
        constants: Calibration,
    ) -> _Passes:
        """`packed`: the result of `packed_rows`."""
        asked, traits = asked_of(workload), loop_traits(workload)
        in_update, in_forward = packed
        own = None if asked.critic is None else replace(workload, model=asked.critic)
        return cls(
            Pass.of(workload, table, in_update, constants, traits),
            Pass.of(workload, table, in_forward, constants, traits),
            None if own is None else Pass.of(own, table, in_forward, constants, traits),
            None if own is None else Pass.of(own, table, in_update, constants, traits),
        )

    def memory(
        self, workload: Workload, table: ConfigTable, knobs: dict[str, NDArray[Any]]
    ) -> tuple[MemoryParts, RankMemory, Column]:
        """Return the result of `phases_memory`."""
        memories = [each.memory() for each in (self.policy, self.critic) if each is not None]
        return phases_memory(
            workload, table, knobs, memories, self.before, _is_split(workload, table, knobs)
        )


def _is_split(
    workload: Workload, table: ConfigTable, knobs: dict[str, NDArray[Any]]
) -> NDArray[np.bool_]:
    """Return whether generation has GPUs of its own, shape (N,)."""
    generates = asked_of(workload).generates
    return (
        np.asarray(knobs["rollout_gpus"] > 0) if generates else np.zeros(len(table), dtype=np.bool_)
    )


def _timed(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    passes: _Passes,
    constants: Calibration,
    between: MemoryParts,
) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return (time of the updates by cause, time of the step by phase), s. `between`: memory of the
    trainer's states between phases."""
    asked, nothing = asked_of(workload), np.zeros(len(table))
    forward = nothing if asked.algorithm == "sft" else passes.before.forward()
    update = passes.policy.update()
    parts = {f.name: asked.steps * np.asarray(getattr(update, f.name)) for f in fields(update)}
    if passes.critic is not None:
        critic = passes.critic.update()
        parts = {
            name: part + asked.steps * np.asarray(getattr(critic, name))
            for name, part in parts.items()
        }
    phases: dict[str, Any] = {
        "generation": nothing, "reward": nothing + asked.reward_s,
        "log_prob": nothing if asked.algorithm == "dpo" else forward,
        "reference": forward if asked.reference else nothing,
        "values": nothing if passes.values is None else passes.values.forward(),
        "update": sum(parts.values()), "refit": nothing, "waiting": nothing,
    }  # fmt: skip
    if asked.generates:
        states = (np.asarray(getattr(between, n)) for n in ("weights", "gradients", "optimizer"))
        weights, gradients, optimizer = states
        away = np.where(_is_split(workload, table, knobs), "none", knobs["phase_offload"])
        copies, in_update_s = (
            copied_s(weights, gradients, optimizer, away, for_update=whole)
            for whole in (False, True)
        )
        parts["other"] = parts["other"] + in_update_s
        phases["update"] = phases["update"] + in_update_s
        phases["log_prob"] = phases["log_prob"] + copies
        phases["reference"] = phases["reference"] + np.where(phases["reference"] > 0, copies, 0.0)
        busy = sum(phases[name] for name in TRAINED)
        phases |= _other_phases(workload, table, knobs, constants, np.asarray(busy))
    return parts, phases


def _of_step(
    parts: dict[str, Column], phases: dict[str, Column]
) -> tuple[PhaseParts, TimeParts, Column]:
    """Return (time of the step by phase, by cause, and the part of it that is stated, sent or
    waited for), s."""
    by_phase = PhaseParts(**phases)
    forwards = phases["log_prob"] + phases["reference"] + phases["values"]
    rest = np.asarray(by_phase.total) - sum(parts.values()) - forwards
    times = TimeParts(
        **{**parts, "compute": parts["compute"] + forwards, "other": parts["other"] + rest}
    )
    return by_phase, times, rest


def step_times(workload: Workload, table: ConfigTable) -> Callable[[Calibration], TimeParts]:
    """Return a function from constants to the time parts of every row. Values that do not depend on
    the constants are computed once."""
    knobs = _knobs_of(workload, table)
    packed, states = packed_rows(workload, table, knobs), list[MemoryParts]()

    def at(constants: Calibration) -> TimeParts:
        passes = _Passes.of(workload, table, packed, constants)
        if not states:  # bytes of states do not depend on constants
            states.append(passes.memory(workload, table, knobs)[0])
        return _of_step(*_timed(workload, table, knobs, passes, constants, states[0]))[1]

    return at


def estimate_step(workload: Workload, table: ConfigTable, constants: Calibration) -> Estimate:
    """Return the estimate of every row, with the time of each phase in `phases_s`."""
    asked, gpu = asked_of(workload), workload.cluster.gpu
    knobs = _knobs_of(workload, table)
    passes = _Passes.of(workload, table, packed_rows(workload, table, knobs), constants)
    between, memory, spread = passes.memory(workload, table, knobs)
    parts, phases = _timed(workload, table, knobs, passes, constants, between)
    by_phase, times, rest = _of_step(parts, phases)
    step, nothing = np.asarray(by_phase.total), np.zeros(len(table))
    level_sigma = np.full_like(step, constants.level_sigma)
    of_training = replace(times, other=times.other - rest)
    share = np.asarray(of_training.total) / step
    sigma = share * np.hypot(time_sigma(of_training, constants, workload.model), level_sigma)
    low, high = interval(step, sigma)
    tokens = nothing + asked.tokens
    world = np.asarray(table.world_size, dtype=np.float64) + (
        knobs["rollout_gpus"] if asked.generates else 0.0
    )
    reference = mfu_peak_flops_per_s(workload, table, constants)
    per_gpu = tokens / step / world
    return Estimate(
        step_time_s=step,
        step_time_low_s=low,
        step_time_high_s=high,
        time_parts_s=times,
        tokens_per_s=tokens / step,
        tokens_per_s_per_gpu=per_gpu,
        mfu=per_gpu * training_flops_per_token(passes.policy.workload) / reference,
        **memory.columns(spread, gpu, constants),
        mfu_peak_flops_per_s=reference,
        level=np.ones_like(step),
        level_sigma=level_sigma,
        stall_probability=nothing,
        stalled_step_time_s=step,
        phases_s=by_phase,
    )


def phases_beside(
    workload: Workload, config: ParallelConfig, constants: Calibration, busy_s: float
) -> dict[str, float]:
    """Return the time of the phases that the trainer does not run, s: stated by the workload or
    computed from that. `busy_s`: time of the trainer's own phases."""
    asked, table = asked_of(workload), ConfigTable.of([config])
    seconds = {"reward": asked.reward_s} if asked.reward_s else {}
    if not asked.generates:
        return seconds
    knobs = _knobs_of(workload, table)
    others = _other_phases(workload, table, knobs, constants, np.array([busy_s]))
    return seconds | {name: float(column[0]) for name, column in others.items()}


def _other_phases(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    constants: Calibration,
    busy: Column,
) -> dict[str, Column]:
    """Return the time of generation, waiting and refit on the trainer's clock, s. `busy`: time of
    its own phases."""
    layout, is_split = layout_of(workload, table), knobs["rollout_gpus"] > 0
    gpus = np.where(is_split, knobs["rollout_gpus"], layout.world)
    bulk, tail = generation_s(workload, knobs["rollout_tp"], gpus)
    stale = knobs["staleness"].astype(np.float64)
    ahead = np.where(
        stale >= 1.0, np.maximum(bulk, busy), np.maximum(bulk, busy + (1.0 - stale) * bulk)
    )
    side_by_side = is_split & (stale > 0)
    return {
        "generation": np.where(side_by_side, 0.0, bulk + tail),
        "waiting": np.where(side_by_side, ahead - busy, 0.0),
        "refit": refit_s(
            workload, layout, constants, is_split, knobs["rollout_tp"].astype(np.float64)
        ),
    }


def generation_s(
    workload: Workload, rollout_tp: NDArray[Any], gpus: Column
) -> tuple[Column, Column]:
    """Return (bulk: time during which all generating GPUs are busy, tail: time from then until the
    longest response ends), s. NaN for a `rollout_tp` without a stated speed."""
    asked = asked_of(workload)
    rollout = asked.rollout
    assert rollout is not None
    rates = np.array([rollout.rate(int(tp)) or np.nan for tp in rollout_tp])
    tokens = asked.sequences * asked.response_lengths.mean
    bulk = tokens / (rates * gpus)
    if not rollout.tokens_per_s_per_response:
        return bulk, np.zeros_like(bulk)
    longest = asked.response_lengths.longest / rollout.tokens_per_s_per_response
    return bulk, np.maximum(longest - bulk, 0.0)
