"""The model of one rank under a config: its pipeline stages, and each kind of parallelism applied to them in turn.

The stages are built on the meta device, without memory, and changed there. Their weights are made last, layer by layer, so that a rank never
holds more than one whole layer of a model that it keeps only a part of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from autotune.ports import TrialRequest
from autotune.spec import ModelSpec, ParallelConfig
from autotune_workers.training.activation_checkpointing import apply_compile, apply_recompute
from autotune_workers.training.context_parallel import apply_context_parallel, positions_of
from autotune_workers.training.data_parallel import Replicated
from autotune_workers.training.decoder import Block, DecoderStage, global_names
from autotune_workers.training.expert_parallel import MixtureOfExperts
from autotune_workers.training.fully_sharded import FullySharded, shard_module
from autotune_workers.training.gradient_sync import GradientSync, Weight, weights_of
from autotune_workers.training.initialization import materialize
from autotune_workers.training.mesh import Mesh, RankContext, tied_embedding_group
from autotune_workers.training.pipeline_parallel import layers_of_rank
from autotune_workers.training.precision import DTYPES, to_float8
from autotune_workers.training.tensor_parallel import apply_tensor_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """What one rank holds of the model."""

    stages: dict[int, DecoderStage]
    """its pipeline stages, by number"""
    weights: list[Weight]
    """of all its stages"""
    sync: GradientSync
    """completes the gradients over data-parallel ranks, and holds what the optimizer updates"""


def parallelize(request: TrialRequest, mesh: Mesh, context: RankContext) -> ParallelModel:
    """Builds this rank's stages and their gradient synchronization; collective."""
    config, model = request.config, request.workload.model
    tied_group = tied_embedding_group(config, mesh, context) if model.tied_embeddings else None
    stages: dict[int, DecoderStage] = {}
    for number, layers in layers_of_rank(model, config, mesh.pp).items():
        with torch.device("meta"):
            stages[number] = DecoderStage(
                model, layers, dtype=DTYPES[config.precision], experts=_experts(model, config, mesh)
            )
        parallelize_stage(stages[number], request, mesh, context.device)
    weights = [w for stage in stages.values() for w in weights_of(stage, config, mesh, tied_group=tied_group)]
    return ParallelModel(stages=stages, weights=weights, sync=_gradient_sync(stages.values(), weights, config))


def parallelize_stage(stage: DecoderStage, request: TrialRequest, mesh: Mesh, device: torch.device) -> None:
    """Applies the config to a stage on the meta device, and gives its weights memory and values."""
    config, seq_len = request.config, request.workload.seq_len

    # before tensor parallelism, which looks for the projections by name
    if config.precision == "fp8":
        to_float8(stage)

    if config.tp > 1:
        apply_tensor_parallel(stage, mesh.axes["tp"], sequence_parallel=config.sequence_parallel)

    _place_positions(stage, seq_len, config, mesh, device)
    if config.cp > 1:
        apply_context_parallel(stage, seq_len, mesh.group("cp"), device)

    apply_recompute(stage, config.recompute)

    # after recomputation, so that the compiler sees it and fuses it into the backward pass
    if config.compile:
        apply_compile(stage)

    # last: FSDP puts its hooks around everything above, and shards each layer before the next one gets its memory
    names = {parameter: name for name, parameter in global_names(stage)}
    for module in (*stage.layers.values(), stage):
        materialize(module, names, request.workload.model, seed=request.seed, device=device)
        if config.zero_stage >= 2:
            _apply_data_parallel(module, config, mesh)


def _experts(model: ModelSpec, config: ParallelConfig, mesh: Mesh) -> Callable[[], nn.Module] | None:
    """Makes the experts of a layer that belong on this rank; None for a model without experts."""
    if not model.num_experts:
        return None
    return functools.partial(MixtureOfExperts, model, group=mesh.group("ep") if config.ep > 1 else None)


def _place_positions(
    stage: DecoderStage, seq_len: int, config: ParallelConfig, mesh: Mesh, device: torch.device
) -> None:
    attention = positions_of(seq_len, config.cp, mesh.cp)
    is_split = config.sequence_parallel and config.tp > 1
    stream = attention.chunk(config.tp)[mesh.tp] if is_split else attention
    stage.place(attention.to(device), stream.to(device))


def _apply_data_parallel(module: nn.Module, config: ParallelConfig, mesh: Mesh) -> None:
    """Shards the module's weights with FSDP: experts over the ranks that hold the same ones, all else over dp and cp."""
    dtype, stage = DTYPES[config.precision], config.zero_stage
    if config.ep > 1 and isinstance(module, Block):
        assert isinstance(module.mlp, MixtureOfExperts)
        shard_module(module.mlp.experts, mesh.axes["expert_data"], stage=stage, dtype=dtype)
    shard_module(module, mesh.axes["dp_cp"], stage=stage, dtype=dtype)


def _gradient_sync(stages: Iterable[DecoderStage], weights: list[Weight], config: ParallelConfig) -> GradientSync:
    if config.zero_stage >= 2:
        return FullySharded([m for stage in stages for m in stage.modules()], weights, stage=config.zero_stage)
    return Replicated(weights, stage=config.zero_stage)
