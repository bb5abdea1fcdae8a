"""The model of one rank under a config: its pipeline stages, and each kind of parallelism applied to them in turn.

The stages are built on the meta device, without memory, and changed there. Their weights are made last, layer by layer, so that a rank never
holds more than one whole layer of a model that it keeps only a part of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autotune.ports import TrialRequest
from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune_workers.training.activation_checkpointing import apply_compile, apply_recompute
from autotune_workers.training.context_parallel import apply_context_parallel, positions_of
from autotune_workers.training.data_parallel import Replicated
from autotune_workers.training.decoder import TIED, Block, DecoderStage, global_names
from autotune_workers.training.expert_parallel import MixtureOfExperts
from autotune_workers.training.fully_sharded import FullySharded, shard_module
from autotune_workers.training.gradient_sync import GradientSync, Weight, weights_of
from autotune_workers.training.initialization import materialize
from autotune_workers.training.loss import VocabularySlice, chunked_token_losses
from autotune_workers.training.low_rank_adapters import apply_adapters
from autotune_workers.training.mesh import Mesh, RankContext, tied_embedding_group
from autotune_workers.training.packed_sequences import apply_documents, document_positions
from autotune_workers.training.pipeline_parallel import layers_of_rank
from autotune_workers.training.precision import DTYPES, to_float8
from autotune_workers.training.task import ParallelModel
from autotune_workers.training.tensor_parallel import apply_tensor_parallel, vocabulary_slice, whole_stream


def parallelize(request: TrialRequest, mesh: Mesh, context: RankContext) -> ParallelModel:
    """Builds this rank's stages and their gradient synchronization; collective."""
    config, model = request.config, request.workload.model
    tied_group = tied_embedding_group(config, mesh, context) if model.tied_embeddings else None
    stages: dict[int, DecoderStage] = {}
    for number, layers in layers_of_rank(model, config, mesh.pp).items():
        with torch.device("meta"):
            stages[number] = DecoderStage(
                model,
                layers,
                is_first=number == 0,
                is_last=number == config.pp * config.virtual_stages - 1,
                dtype=DTYPES[config.precision],
                experts=_experts(model, config, mesh),
            )
        parallelize_stage(stages[number], request, mesh, context.device)
    weights = [
        weight
        for stage in stages.values()
        for weight in weights_of(global_names(stage), config, mesh, tied=TIED, tied_group=tied_group)
    ]
    return ParallelModel(stages=stages, weights=weights, sync=gradient_sync(stages.values(), weights, config))


def parallelize_stage(stage: DecoderStage, request: TrialRequest, mesh: Mesh, device: torch.device) -> None:
    """Applies the config to a stage on the meta device, and gives its weights memory and values."""
    config, workload = request.config, request.workload
    dtype = DTYPES[config.precision]

    # before tensor parallelism, which looks for the projections by name
    if config.precision == "fp8":
        to_float8(stage)

    if config.tp > 1:
        apply_tensor_parallel(stage, mesh.axes["tp"], sequence_parallel=config.sequence_parallel)

    # after tensor parallelism, which they follow
    if workload.peft is not None:
        apply_adapters(stage, workload.peft, dtype)
    if config.loss == "chunked" and stage.is_last:
        stage.loss = functools.partial(
            _chunked_loss, mesh.axes["tp"], vocabulary_slice(workload.model.vocab_size, mesh.axes["tp"])
        )

    _place_positions(stage, workload, config, mesh, device)
    if workload.document_len:
        apply_documents(stage, workload.document_len)
    if config.cp > 1:
        apply_context_parallel(stage, config.cp_style, workload, mesh.group("cp"), device)

    apply_recompute(stage, config.recompute)

    # after recomputation, so that the compiler sees it and fuses it into the backward pass
    if config.compile:
        apply_compile(stage.layers.values())

    # last: FSDP puts its hooks around everything above, and shards each layer before the next one gets its memory
    names = {parameter: name for name, parameter in global_names(stage)}
    for module in (*stage.layers.values(), stage):
        materialize(module, names, workload.model, seed=request.seed, device=device)
        if config.zero_stage >= 2:
            _apply_data_parallel(module, config, mesh)


def _experts(model: ModelSpec, config: ParallelConfig, mesh: Mesh) -> Callable[[], nn.Module] | None:
    """Makes the experts of a layer that belong on this rank; None for a model without experts."""
    if not model.num_experts:
        return None
    group = mesh.group("ep") if config.ep > 1 else None
    return functools.partial(MixtureOfExperts, model, group=group, dispatcher=config.dispatcher)


def _chunked_loss(
    mesh: DeviceMesh, vocabulary: VocabularySlice, output: nn.Linear, x: Tensor, targets: Tensor
) -> Tensor:
    """See `decoder.Loss`. `mesh`: tensor-parallel ranks."""
    stream = whole_stream(x, mesh) if mesh.size() > 1 else x
    weight = output.weight.to_local() if isinstance(output.weight, DTensor) else output.weight
    return chunked_token_losses(stream.flatten(0, 1), weight, targets.flatten(), vocabulary)


def _place_positions(
    stage: DecoderStage, workload: Workload, config: ParallelConfig, mesh: Mesh, device: torch.device
) -> None:
    held = positions_of(workload.seq_len, config.cp, mesh.cp, config.cp_style)
    attention = document_positions(held, workload.document_len)
    is_split = config.sequence_parallel and config.tp > 1
    stream = attention.chunk(config.tp)[mesh.tp] if is_split else attention
    stage.place(attention.to(device), stream.to(device))


def _apply_data_parallel(module: nn.Module, config: ParallelConfig, mesh: Mesh) -> None:
    """Shards the module's weights with FSDP: experts over the ranks that hold the same ones, all else over dp and cp."""
    dtype, stage = DTYPES[config.precision], config.zero_stage
    if config.ep > 1 and isinstance(module, Block):
        assert isinstance(module.mlp, MixtureOfExperts)
        shard_module(module.mlp.experts, mesh.shards_of("expert_data"), stage=stage, dtype=dtype)
    shard_module(module, mesh.shards_of("dp_cp"), stage=stage, dtype=dtype)


def gradient_sync(stages: Iterable[nn.Module], weights: list[Weight], config: ParallelConfig) -> GradientSync:
    """What completes the gradients of these stages."""
    if config.zero_stage >= 2:
        return FullySharded([m for stage in stages for m in stage.modules()], weights, stage=config.zero_stage)
    return Replicated(weights, stage=config.zero_stage)
