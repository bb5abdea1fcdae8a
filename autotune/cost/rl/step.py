"""A step of post-training by its phases.

    G  generation: tokens of responses / (told tokens per second and GPU * GPUs that generate); with a told speed of one response no less than the longest takes: G = bulk + tail
    U  what the trainer does: log-probabilities of the policy and the reference, values, the update of policy and critic, states to the host and back

colocated     reward + G + U + refit
split         the same, one side after the other: while one works the other waits
async         the trainer updates on responses of a policy that is s steps old. Generation goes on meanwhile, up to s steps ahead: of the next step's responses the share 1 - s is left when the
              update ends (Noukhovitch et al., arXiv 2410.18252, s = 1; verl: `staleness_threshold`). The tail of one step runs beside the next, once s > 0:
                  s = 0     G + U                    0 < s < 1     max(bulk, U + (1 - s) * bulk)                    s >= 1     max(bulk, U)
              and the refit, for which both stop

The parts are seconds of the trainer's clock and add up to the step: in `async` `generation` is 0 and `waiting` is what the trainer waits for responses. Time parts of the estimate are those of U by
cause; all that is told, sent or waited for is in `other`. All times have the error bars of the update; what is told has none of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.compute import peak_flops_per_s
from autotune.cost.flops import layer_attention_flops, layer_matmul_flops, training_flops_per_token
from autotune.cost.layout import Column, layout_of
from autotune.cost.memory import RankMemory
from autotune.cost.rl.knobs import asked_of, knob_values
from autotune.cost.rl.memory import phases_memory
from autotune.cost.rl.packing import Packed, packed
from autotune.cost.rl.refit import copied_s, refit_s
from autotune.cost.rl.update import Pass
from autotune.cost.traits import loop_traits
from autotune.cost.uncertainty import interval, memory_sigma, time_sigma
from autotune.spec import ConfigTable, Estimate, MemoryParts, TimeParts, Workload
from autotune.spec.estimate import PhaseParts

_PACKS = ("balance", "group_by_length", "micro_batch_tokens", "log_prob_micro_batch_tokens")


def estimate_step(workload: Workload, table: ConfigTable, constants: Calibration) -> Estimate:
    """The estimate of every row; `phases_s` holds the step by its phases."""
    knobs = {name: knob_values(workload, table, name) for name in asked_of(workload).knob_names}
    pieces: list[tuple[NDArray[np.intp], Estimate]] = []
    for rows, chosen in _alike(workload, table, knobs):
        part = table.take(rows)
        own = {name: values[rows] for name, values in knobs.items()}
        pieces.append((rows, _alike_estimate(workload, part, own, chosen, constants)))
    order = np.argsort(np.concatenate([rows for rows, _ in pieces]), kind="stable")
    first = pieces[0][1]

    def joined(get: Any) -> Any:
        return np.concatenate([np.broadcast_to(get(e), (len(rows),)) for rows, e in pieces])[order]

    values: dict[str, Any] = {}
    for f in fields(Estimate):
        if isinstance(parts := getattr(first, f.name), TimeParts | MemoryParts | PhaseParts):
            names = [p.name for p in fields(parts)]
            values[f.name] = type(parts)(
                **{n: joined(lambda e, f=f, n=n: getattr(getattr(e, f.name), n)) for n in names}
            )
        else:
            values[f.name] = joined(lambda e, f=f: getattr(e, f.name))
    return Estimate(**values)


def _alike(
    workload: Workload, table: ConfigTable, knobs: dict[str, NDArray[Any]]
) -> Iterator[tuple[NDArray[np.intp], dict[str, Any]]]:
    """Rows that pack alike, with the values by which they do."""
    meets = (table.zero_stage == 3) | (table.ep > 1)
    columns: dict[str, NDArray[Any]] = {
        "dp": table.dp, "cp": table.cp, "micro_batch_size": table.micro_batch_size, "meets": meets,
        **{name: knobs[name] for name in _PACKS if name in knobs},
    }  # fmt: skip
    codes = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in columns.values()]
    _, first, kind = np.unique(np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True)
    for i, row in enumerate(first):
        yield np.flatnonzero(kind.reshape(-1) == i), {n: column[row].item() for n, column in columns.items()}


def passes_of(workload: Workload, chosen: dict[str, Any]) -> tuple[Packed, Packed]:
    """(the update's mini-batches, the forward passes' whole batch) of rows with these values."""
    asked, model = asked_of(workload), workload.model
    kappa = layer_attention_flops(model, 1.0) / layer_matmul_flops(model)
    tokens = int(chosen.get("micro_batch_tokens", asked.micro_batch_tokens)) * chosen["cp"]
    before = int(chosen.get("log_prob_micro_batch_tokens", asked.log_prob_micro_batch_tokens)) * chosen["cp"] or tokens

    def one(mini_batches: int, capacity: int) -> Packed:
        return packed(
            asked, ranks=chosen["dp"], mini_batches=mini_batches, micro_batch=chosen["micro_batch_size"], capacity=capacity,
            balance=chosen.get("balance", asked.balance), meets_each=chosen["meets"], kappa=kappa,
            sorted_by_length=bool(chosen.get("group_by_length", asked.group_by_length)),
        )  # fmt: skip

    return one(asked.mini_batches, tokens), one(1, before)


def _alike_estimate(
    workload: Workload,
    table: ConfigTable,
    knobs: dict[str, NDArray[Any]],
    chosen: dict[str, Any],
    constants: Calibration,
) -> Estimate:
    asked, traits, gpu = asked_of(workload), loop_traits(workload), workload.cluster.gpu
    in_update, in_forward = passes_of(workload, chosen)
    policy = Pass.of(workload, table, in_update, constants, traits)
    before = Pass.of(workload, table, in_forward, constants, traits)
    nothing = np.zeros(len(table))
    forward = nothing if asked.algorithm == "sft" else before.forward()
    update = policy.update()
    parts = {f.name: asked.steps * np.asarray(getattr(update, f.name)) for f in fields(update)}
    memories: list[RankMemory] = [policy.memory()]
    values = nothing
    if asked.critic is not None:
        own = replace(workload, model=asked.critic)
        values = Pass.of(own, table, in_forward, constants, traits).forward()
        judged = Pass.of(own, table, in_update, constants, traits)
        critic = judged.update()
        parts = {name: part + asked.steps * np.asarray(getattr(critic, name)) for name, part in parts.items()}
        memories.append(judged.memory())
    is_split = np.asarray(knobs["rollout_gpus"] > 0) if asked.generates else nothing > 0
    plain, memory = phases_memory(workload, table, knobs, memories, before, is_split)
    phases = {
        "generation": nothing, "reward": nothing + asked.reward_s,
        "log_prob": nothing if asked.algorithm == "dpo" else forward,
        "reference": forward if asked.reference or asked.algorithm == "dpo" else nothing,
        "values": values, "update": sum(parts.values()), "refit": nothing, "waiting": nothing,
    }  # fmt: skip
    if asked.generates:
        weights, gradients, optimizer = (np.asarray(getattr(plain, n)) for n in ("weights", "gradients", "optimizer"))
        away = np.where(is_split, "none", knobs["phase_offload"])
        copies, in_update_s = (
            copied_s(weights, gradients, optimizer, away, for_update=whole) for whole in (False, True)
        )
        parts["other"] = parts["other"] + in_update_s
        phases["update"] = phases["update"] + in_update_s
        phases["log_prob"] = phases["log_prob"] + copies
        phases["reference"] = phases["reference"] + np.where(phases["reference"] > 0, copies, 0.0)
        layout = layout_of(workload, table)
        phases |= _generated(workload, knobs, layout.world, is_split, phases)
        phases["refit"] = refit_s(workload, layout, constants, is_split, knobs["rollout_tp"].astype(np.float64))
    made = PhaseParts(**phases)
    step = np.asarray(made.total)
    forwards = phases["log_prob"] + phases["reference"] + phases["values"]
    told = step - sum(parts.values()) - forwards
    parts["compute"] = parts["compute"] + forwards
    parts["other"] = parts["other"] + told
    times = TimeParts(**parts)
    level_sigma = np.full_like(step, constants.level_sigma)
    of_training = TimeParts(**{**parts, "other": parts["other"] - told})
    share = np.asarray(of_training.total) / step
    sigma = share * np.hypot(time_sigma(of_training, constants, workload.model), level_sigma)
    low, high = interval(step, sigma)
    spread = memory_sigma(memory.parts, constants, workload.model)
    tokens = nothing + asked.tokens
    world = np.asarray(table.world_size, dtype=np.float64) + (knobs["rollout_gpus"] if asked.generates else 0.0)
    reference = peak_flops_per_s(workload, table)
    per_gpu = tokens / step / world
    return Estimate(
        step_time_s=step,
        step_time_low_s=low,
        step_time_high_s=high,
        time_parts_s=times,
        tokens_per_s=tokens / step,
        tokens_per_s_per_gpu=per_gpu,
        mfu=per_gpu * training_flops_per_token(policy.workload) / reference,
        **memory.columns(spread, gpu, constants),
        mfu_peak_flops_per_s=reference,
        level=np.ones_like(step),
        level_sigma=level_sigma,
        stall_probability=nothing,
        stalled_step_time_s=step,
        phases_s=made,
    )


def _generated(
    workload: Workload,
    knobs: dict[str, NDArray[Any]],
    world: Column,
    is_split: NDArray[np.bool_],
    phases: dict[str, Any],
) -> dict[str, Column]:
    """What the trainer's clock says of generation."""
    bulk, tail = generation_s(workload, knobs["rollout_tp"], np.where(is_split, knobs["rollout_gpus"], world))
    busy = sum(phases[name] for name in ("log_prob", "reference", "values", "update"))
    stale = knobs["staleness"].astype(np.float64)
    ahead = np.where(stale >= 1.0, np.maximum(bulk, busy), np.maximum(bulk, busy + (1.0 - stale) * bulk))
    side_by_side = is_split & (stale > 0)
    return {
        "generation": np.where(side_by_side, 0.0, bulk + tail),
        "waiting": np.where(side_by_side, ahead - busy, 0.0),
    }


def generation_s(workload: Workload, rollout_tp: NDArray[Any], gpus: Column) -> tuple[Column, Column]:
    """(while all GPUs that generate are busy, the tail until the longest response ends), s. A degree whose speed was not told is not a number."""
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
