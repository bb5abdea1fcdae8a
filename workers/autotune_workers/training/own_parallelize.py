"""The part of a model that code builds that one rank holds: its pipeline stages, and each kind of parallelism applied to them in turn.

The module is built whole on the host, with the same starting values on every rank, and cut from there: its own initialization counts. So the host must have
room for the whole model in fp32 for a moment, for one rank at least (`build_in_turns`); the device holds what the config leaves of it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.spec import ParallelConfig, Peft
from autotune_workers.own_model.blocks import attention_modules, block_names
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.training.activation_checkpointing import apply_compile, recompute
from autotune_workers.training.fully_sharded import shard_module
from autotune_workers.training.gradient_sync import Weight, weights_of
from autotune_workers.training.initialization import initial_value
from autotune_workers.training.low_rank_adapters import apply_own_adapters
from autotune_workers.training.mesh import Mesh, RankContext
from autotune_workers.training.own_cut import aliases, cut
from autotune_workers.training.own_stage import OwnStage
from autotune_workers.training.own_tensor_parallel import apply_plan, whole_plan
from autotune_workers.training.parallelize import gradient_sync
from autotune_workers.training.precision import DTYPES
from autotune_workers.training.task import ParallelModel


def parallelize_own(
    request: TrialRequest,
    built: BuiltModel,
    mesh: Mesh,
    context: RankContext,
    *,
    tied_group: dist.ProcessGroup | None,
) -> ParallelModel:
    """Makes this rank's stages and their gradient synchronization; no rank waits for another. `built`: the whole model; it is used up. `tied_group`: of
    the first and the last pipeline rank."""
    config = request.config
    shared = aliases(built.model)
    numbers = range(mesh.pp, config.pp * config.virtual_stages, config.pp)
    plan = whole_plan(built) if config.tp > 1 else {}
    stages: dict[int, OwnStage] = {}
    weights: list[Weight] = []
    for number in numbers:
        model = built.model if number == numbers[-1] else copy.deepcopy(built.model)
        stage = own_stage(replace(built, model=model), number, config)
        partial = _parallelize_stage(stage, request, plan, mesh, context.device)
        stages[number] = stage
        names = tuple(f"{name}." for name in stage.layers if name)
        weights += weights_of(
            ((shared.get(name, name), parameter) for name, parameter in stage.module.named_parameters()),
            config,
            mesh,
            tied=next(iter(shared.values()), ""),
            tied_group=tied_group if shared else None,
            in_layer=functools.partial(_is_inside, names),
            partial_over_tp=partial,
        )
    return ParallelModel(stages=stages, weights=weights, sync=gradient_sync(stages.values(), weights, config))


def own_stage(built: BuiltModel, number: int, config: ParallelConfig) -> OwnStage:
    """The stage of that number, whole. Changes `built.model`."""
    count = config.pp * config.virtual_stages
    return OwnStage(
        cut(built, number, count),
        is_first=number == 0,
        is_last=number == count - 1,
        dtype=DTYPES[config.precision],
        chunked=config.loss == "chunked",
    )


def _parallelize_stage(
    stage: OwnStage, request: TrialRequest, plan: Mapping[str, Any], mesh: Mesh, device: torch.device
) -> frozenset[str]:
    """Applies the config to the stage. Returns the names of whole weights whose gradients are parts of a sum over tp."""
    config, peft = request.config, request.workload.peft
    dtype = DTYPES[config.precision]
    partial: frozenset[str] = frozenset()
    if config.tp > 1:
        partial = apply_plan(stage.module, plan, mesh.axes["tp"])
    if peft is not None:
        host = torch.device("cpu")
        start = functools.partial(initial_value, spec=request.workload.model, seed=request.seed, device=host)
        beside = adapted(stage.built, peft)
        apply_own_adapters(stage.module, beside, peft.rank, dtype, start)
        partial |= {f"{name}.adapters.{key}" for name in beside if f"{name}.weight" in partial for key in ("a", "b")}

    if config.recompute == "full":
        recompute(stage.layers.values())
    elif config.recompute == "selective":
        inner = {module for block in stage.layers.values() for module in block.modules()}
        recompute(module for module in _attention(stage) if module in inner)
    # after recomputation, so that the compiler sees it and fuses it into the backward pass
    if config.compile:
        apply_compile(stage.layers.values())

    # last: FSDP puts its hooks around everything above, and moves each block to the device before the next one
    if config.zero_stage >= 2:
        shard = functools.partial(shard_module, mesh=mesh.shards_of("dp_cp"), stage=config.zero_stage, dtype=dtype)
        for block in (block for block in stage.layers.values() if block is not stage.module):
            shard(block, cast_inputs=True)
        if config.pp == 1:
            shard(stage.module, cast_inputs=True)
        else:
            # torch's schedules tell a stage when its last backward pass ends, and part of a class is run without the class's own forward pass.
            # The loss sees the inputs too, so that they stay as they are: autocast takes care of the first products.
            shard(stage)
    if any(tensor.device.type != device.type for tensor in (*stage.parameters(), *stage.buffers())):
        stage.to(device)  # torch refuses to move fake tensors, also to where they are
    return partial


def _is_inside(prefixes: tuple[str, ...], name: str) -> bool:
    return bool(prefixes) and name.startswith(prefixes)


def _attention(stage: OwnStage) -> list[nn.Module]:
    found = attention_modules(stage.module, tuple(name for name in stage.layers if name))
    if not found:
        raise ConfigError(
            "recompute=selective runs attention again, but no module in the blocks of the model is called attention (attn)",
            remedy="use recompute=full",
            field="recompute",
        )
    return [stage.module.get_submodule(name) for name in found]


def adapted(built: BuiltModel, peft: Peft) -> dict[str, nn.Linear]:
    """The projections beside which adapters stand: all of the blocks (of the model, where it has none), or those of their attention."""
    blocks = block_names(built)
    inside = attention_modules(built.model, blocks) if peft.targets == "attention" else blocks
    prefixes = tuple(f"{name}." for name in inside)
    linears = {
        name: module
        for name, module in built.model.named_modules()
        # the router is no part of what is adapted: it chooses, and a choice has no gradient of its own
        if type(module) is nn.Linear and not name.endswith("router") and (not blocks or name.startswith(prefixes))
    }
    if not linears:
        raise ConfigError(
            f"peft.targets={peft.targets} finds no Linear module to put adapters beside",
            remedy="use targets all, or train all weights",
            field="peft",
        )
    return linears
