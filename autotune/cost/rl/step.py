"""A step of post-training by its phases.

    G  generation: tokens of responses / (told tokens per second and GPU * GPUs that generate); with a told speed of one response no less than the longest takes: G = bulk + tail
    U  what the trainer does: log-probabilities of the policy and the reference, values, the update of policy and critic, states to the host and back

colocated     reward + G + U + refit
split         the same, one side after the other: while one works the other waits
async         the trainer updates on responses of a policy that is s steps old. Generation goes on meanwhile, up to s steps ahead: of the next step's responses the share 1 - s is left when the
              update ends (Noukhovitch et al., arXiv 2410.18252, s = 1; verl: `staleness_threshold`). The tail of one step runs beside the next, once s > 0:
                  s = 0     G + U                    0 < s < 1     max(bulk, U + (1 - s) * bulk)                    s >= 1     max(bulk, U)
              and the refit, for which both stop

The parts are seconds of the trainer's clock and add up to the step: in `async` `generation` is 0
and `waiting` is what the trainer waits for responses. Time parts of the estimate are those of U by
cause; all that is told, sent or waited for is in `other`. All times have the error bars of the
update; what is told has none of its own.

The knobs of post-training as columns: a study's own knobs of those names, else what the workload
has today.

Memory of each phase with what stays of the others; the peak is that of the fullest phase.

generation     of a colocated engine: the told fraction of the device, beside the trainer's weights, gradients and optimizer states that are not in host memory then (`phase_offload`), the
               reference model and the framework's own. Gradients stay where the trainer keeps a buffer for them (Megatron-LM), not where its step frees them
log-prob       the trainer's states, the reference model, and logits of one micro-batch with their log-softmax; nothing is kept for a backward pass
update         the peak of a plain step on the fullest micro-batch, beside the reference model (in host memory with `phase_offload: all` and `reference_offload`) and what a sleeping engine keeps, or all that one keeps which never sleeps

Where adapters are trained, the policy without them is the reference model, but in OpenRLHF, which
loads one all the same (`ReferenceModelActor` in trainer/ray/launcher.py).

A critic's states stand beside the policy's; one of both is updated at a time. An engine that sleeps
gives back its cache and weights and keeps its CUDA context and graphs (`ENGINE_ASLEEP`; vLLM prints
"2.12 GiB memory is still in use" after "Sleep mode freed 63.53 GiB memory").
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
    """Columns of all knobs of post-training by name."""
    return {name: knob_values(workload, table, name) for name in asked_of(workload).knob_names}


ENGINE_ASLEEP = 2.12 * 2**30
OWN_REFERENCE = "openrlhf"
"""the trainer that loads a reference model beside adapters, too"""
NAMES = tuple(f.name for f in fields(MemoryParts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseMemory:
    """Memory of one phase on a rank, with what stays there of the others."""

    parts: dict[str, Column]
    """bytes, by the names of `MemoryParts`"""
    spare: Column
    unsure: Column | float
    given: Column | float
    """bytes that the workload states, which have no error of their own"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What phases hold beside their own memory, bytes."""

    states: Sequence[dict[str, Column]]
    """of policy and critic: weights, gradients and optimizer that stay between phases"""
    away: NDArray[Any]
    """what is in host memory during generation (`phase_offload`)"""
    scoring: Column
    """the reference model while it computes log-probabilities"""
    reference: Column
    """and during every other phase"""
    engine: Column
    """of a colocated engine while it generates"""
    awake: Column
    """and afterwards, if it never sleeps"""
    asleep: Column
    """or what it keeps asleep"""

    @property
    def resident(self) -> dict[str, Column]:
        """The states of policy and critic together."""
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
    """(the trainer's states between phases, the peak, the standard deviation of its logarithm).
    `updates`: peaks of policy and critic, each alone.

    What an engine takes is told and has no error of its own. The deviation is that of which the
    upper end of the 90% interval is the highest of all phases.
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
    """One phase for each of policy and critic, with the other's states beside it."""
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
    """(the phase with the highest peak in each row, the standard deviation of the logarithm of that
    peak)."""
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
    """Weights of a reference model, which is cut and sharded as the policy is: in 16 bits, by the
    native loop in fp32."""
    layout, traits = layout_of(workload, table), loop_traits(workload)
    stages = stages_of(workload.model, table, traits.split)
    most = np.maximum.reduce([stages.first, stages.middle, stages.last])
    dense, experts = layer_weights(workload.model, layout)
    embedding, projection = edge_weights(workload.model, layout, traits.vocab_parallel)
    edges = np.where(layout.pp == 1, embedding + projection, np.maximum(embedding, projection))
    shards = np.where(layout.zero == 3, layout.shard_group.size, 1.0)
    expert_shards = np.where(layout.zero == 3, layout.expert_shard_group.size, 1.0)
    size = 4.0 if workload.trainer == "native" else 2.0
    return np.asarray(size * ((most * dense + edges) / shards + most * experts / expert_shards))


_PACKS = ("balance", "group_by_length", "micro_batch_tokens", "log_prob_micro_batch_tokens")


def packed_rows(
    workload: Workload, table: ConfigTable, knobs: dict[str, NDArray[Any]]
) -> tuple[Packed, Packed]:
    """(the update's mini-batches, the forward passes' whole batch) of every row, as columns: rows
    that pack alike are simulated once."""
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
    """kappa: FLOPs of attention per token and token attended to, over those of the matrix products
    per token."""
    return layer_attention_flops(model, 1.0) / layer_matmul_flops(model)


def passes_of(workload: Workload, chosen: dict[str, Any]) -> tuple[Packed, Packed]:
    """(the update's mini-batches, the forward passes' whole batch) of rows with these values."""
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
    """The passes of all rows."""

    policy: Pass
    before: Pass
    """those without gradients, over the whole batch"""
    values: Pass | None
    critic: Pass | None
    """its update"""

    @classmethod
    def of(
        cls,
        workload: Workload,
        table: ConfigTable,
        packed: tuple[Packed, Packed],
        constants: Calibration,
    ) -> _Passes:
        """`packed`: as `packed_rows`."""
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
        """As `phases_memory`."""
        memories = [each.memory() for each in (self.policy, self.critic) if each is not None]
        return phases_memory(
            workload, table, knobs, memories, self.before, _is_split(workload, table, knobs)
        )


def _is_split(
    workload: Workload, table: ConfigTable, knobs: dict[str, NDArray[Any]]
) -> NDArray[np.bool_]:
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
    """(seconds of the updates by cause, of the step by phases). `between`: the trainer's states
    between phases."""
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
        phases |= _beside(workload, table, knobs, constants, np.asarray(busy))
    return parts, phases


def _of_step(
    parts: dict[str, Column], phases: dict[str, Column]
) -> tuple[PhaseParts, TimeParts, Column]:
    """(the step by phases, by cause, what of it is told, sent or waited for)"""
    made = PhaseParts(**phases)
    forwards = phases["log_prob"] + phases["reference"] + phases["values"]
    rest = np.asarray(made.total) - sum(parts.values()) - forwards
    times = TimeParts(
        **{**parts, "compute": parts["compute"] + forwards, "other": parts["other"] + rest}
    )
    return made, times, rest


def step_times(workload: Workload, table: ConfigTable) -> Callable[[Calibration], TimeParts]:
    """The time parts of every row by constants; what no constant changes is computed once."""
    knobs = _knobs_of(workload, table)
    packed, states = packed_rows(workload, table, knobs), list[MemoryParts]()

    def at(constants: Calibration) -> TimeParts:
        passes = _Passes.of(workload, table, packed, constants)
        if not states:  # bytes of states are no matter of constants
            states.append(passes.memory(workload, table, knobs)[0])
        return _of_step(*_timed(workload, table, knobs, passes, constants, states[0]))[1]

    return at


def estimate_step(workload: Workload, table: ConfigTable, constants: Calibration) -> Estimate:
    """The estimate of every row; `phases_s` holds the step by its phases."""
    asked, gpu = asked_of(workload), workload.cluster.gpu
    knobs = _knobs_of(workload, table)
    passes = _Passes.of(workload, table, packed_rows(workload, table, knobs), constants)
    between, memory, spread = passes.memory(workload, table, knobs)
    parts, phases = _timed(workload, table, knobs, passes, constants, between)
    made, times, rest = _of_step(parts, phases)
    step, nothing = np.asarray(made.total), np.zeros(len(table))
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
        phases_s=made,
    )


def phases_beside(
    workload: Workload, config: ParallelConfig, constants: Calibration, busy_s: float
) -> dict[str, float]:
    """Seconds of the phases of a step that the trainer does not run, as they were told or follow
    from that, where its own take `busy_s`."""
    asked, table = asked_of(workload), ConfigTable.of([config])
    found = {"reward": asked.reward_s} if asked.reward_s else {}
    if not asked.generates:
        return found
    knobs = _knobs_of(workload, table)
    beside = _beside(workload, table, knobs, constants, np.array([busy_s]))
    return found | {name: float(seconds[0]) for name, seconds in beside.items()}


def _beside(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    constants: Calibration,
    busy: Column,
) -> dict[str, Column]:
    """Generation, waiting and refit on the trainer's clock. `busy`: seconds of its own phases."""
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
    """(while all GPUs that generate are busy, the tail until the longest response ends), s. A
    degree whose speed was not told is not a number."""
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
