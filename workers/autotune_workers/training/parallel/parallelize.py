"""Builds a rank's pipeline stages, and applies each kind of parallelism to them.

The bundled decoder is built on the meta device, without memory, and changed there. Its weights are
allocated last, layer by layer, so that a rank never has more than one whole layer of a model of
which it keeps only a part.

A model built by code is built whole in host memory, with the same initial values on all ranks, and
split afterwards, so that its own initialization is used. So the host needs memory for the whole
model in fp32, for at least one rank at a time (`in_turns`); the device only has the rank's part.

Tensor parallelism of a model built by code follows its plan: each module in the plan is split over
the `tp` axis with DTensors. Activations between modules are plain tensors: outputs of column-wise
split modules are this rank's part, all others are whole. Weights that are not in the plan are equal
on all tp ranks. `autotune_workers.own_model.built_model` has the names of the styles.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.spec import ModelSpec, ParallelConfig, Peft, Workload
from autotune_workers.own_model.built_model import (
    BuiltModel,
    attention_modules,
    block_names,
    planned,
)
from autotune_workers.training.model.decoder import TIED, Block, DecoderStage, global_names
from autotune_workers.training.model.initialization import initial_value, materialize
from autotune_workers.training.model.loss import VocabularySlice, chunked_token_losses
from autotune_workers.training.model.low_rank_adapters import apply_adapters, apply_own_adapters
from autotune_workers.training.model.own_stage import OwnStage, Skip, aliases, cut
from autotune_workers.training.model.packed_sequences import apply_documents, document_positions
from autotune_workers.training.parallel.activation_checkpointing import (
    apply_compile,
    apply_recompute,
    recompute,
)
from autotune_workers.training.parallel.context_parallel import apply_context_parallel, positions_of
from autotune_workers.training.parallel.data_parallel import Replicated
from autotune_workers.training.parallel.expert_parallel import MixtureOfExperts
from autotune_workers.training.parallel.fully_sharded import FullySharded, shard_module
from autotune_workers.training.parallel.gradient_sync import GradientSync, Weight, weights_of
from autotune_workers.training.parallel.mesh import Mesh, RankContext, tied_embedding_group
from autotune_workers.training.parallel.pipeline_parallel import layers_of_rank
from autotune_workers.training.parallel.tensor_parallel import (
    apply_tensor_parallel,
    vocabulary_slice,
    whole_stream,
)
from autotune_workers.training.precision import DTYPES, to_float8
from autotune_workers.training.task import ParallelModel


def parallelize(request: TrialRequest, mesh: Mesh, context: RankContext) -> ParallelModel:
    """Build this rank's stages of the decoder and their gradient synchronization. Collective."""
    config, model = request.config, request.workload.model
    tied_group = tied_embedding_group(config, mesh, context) if model.tied_embeddings else None
    stages = decoder_stages(request, mesh, context)
    weights = [
        weight
        for stage in stages.values()
        for weight in weights_of(
            global_names(stage), config, mesh, tied=TIED, tied_group=tied_group
        )
    ]
    return ParallelModel(
        stages=stages, weights=weights, sync=gradient_sync(stages.values(), weights, config)
    )


def decoder_stages(
    request: TrialRequest, mesh: Mesh, context: RankContext
) -> dict[int, DecoderStage]:
    """This rank's stages of the decoder, by number."""
    config, model = request.config, request.workload.model
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
    return stages


def parallelize_stage(
    stage: DecoderStage, request: TrialRequest, mesh: Mesh, device: torch.device
) -> None:
    """Apply the config to a stage on the meta device, then allocate and initialize its weights."""
    config, workload = request.config, request.workload
    dtype = DTYPES[config.precision]

    # before tensor parallelism, which finds the projections by name
    if config.precision == "fp8":
        to_float8(stage)

    if config.tp > 1:
        apply_tensor_parallel(stage, mesh.axes["tp"], sequence_parallel=config.sequence_parallel)

    # after tensor parallelism, which adapters and loss follow
    if workload.peft is not None:
        apply_adapters(stage, workload.peft, dtype)
    if config.loss == "chunked" and stage.is_last:
        stage.loss = functools.partial(
            _chunked_loss,
            mesh.axes["tp"],
            vocabulary_slice(workload.model.vocab_size, mesh.axes["tp"]),
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

    # last: FSDP's hooks must wrap everything above, and each layer is sharded before the next one
    # is allocated
    names = {parameter: name for name, parameter in global_names(stage)}
    for module in (*stage.layers.values(), stage):
        materialize(module, names, workload.model, seed=request.seed, device=device)
        if config.zero_stage >= 2:
            _apply_data_parallel(module, config, mesh)


def _experts(
    model: ModelSpec, config: ParallelConfig, mesh: Mesh
) -> Callable[[], nn.Module] | None:
    """A function that creates this rank's experts of a layer; None for a model without experts."""
    if not model.num_experts:
        return None
    group = mesh.group("ep") if config.ep > 1 else None
    return functools.partial(MixtureOfExperts, model, group=group, dispatcher=config.dispatcher)


def _chunked_loss(
    mesh: DeviceMesh, vocabulary: VocabularySlice, output: nn.Linear, x: Tensor, targets: Tensor
) -> Tensor:
    """The chunked loss as a `decoder.Loss`. `mesh`: tensor-parallel ranks."""
    stream = whole_stream(x, mesh) if mesh.size() > 1 else x
    weight = output.weight.to_local() if isinstance(output.weight, DTensor) else output.weight
    return chunked_token_losses(stream.flatten(0, 1), weight, targets.flatten(), vocabulary)


def _place_positions(
    stage: DecoderStage,
    workload: Workload,
    config: ParallelConfig,
    mesh: Mesh,
    device: torch.device,
) -> None:
    positions = positions_of(workload.seq_len, config.cp, mesh.cp, config.cp_style)
    attention = document_positions(positions, workload.document_len)
    is_split = config.sequence_parallel and config.tp > 1
    stream = attention.chunk(config.tp)[mesh.tp] if is_split else attention
    stage.place(attention.to(device), stream.to(device))


def _apply_data_parallel(module: nn.Module, config: ParallelConfig, mesh: Mesh) -> None:
    """Shard the module's weights with FSDP: experts over the ranks with the same experts, all others
    over dp and cp."""
    dtype, stage = DTYPES[config.precision], config.zero_stage
    if config.ep > 1 and isinstance(module, Block):
        assert isinstance(module.mlp, MixtureOfExperts)
        shard_module(module.mlp.experts, mesh.shards_of("expert_data"), stage=stage, dtype=dtype)
    shard_module(module, mesh.shards_of("dp_cp"), stage=stage, dtype=dtype)


def gradient_sync(
    stages: Iterable[nn.Module], weights: list[Weight], config: ParallelConfig
) -> GradientSync:
    """Create the gradient synchronization of these stages."""
    if config.zero_stage >= 2:
        return FullySharded(
            [m for stage in stages for m in stage.modules()], weights, stage=config.zero_stage
        )
    return Replicated(weights, stage=config.zero_stage)


def parallelize_own(
    request: TrialRequest,
    built: BuiltModel,
    mesh: Mesh,
    context: RankContext,
    *,
    tied_group: dist.ProcessGroup | None,
) -> ParallelModel:
    """Create this rank's stages of a model built by code, and their gradient synchronization. Not
    collective. `built`: the whole model, which is changed. `tied_group`: the first and the last
    pipeline rank; None without tied weights."""
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
        weights += weights_of(
            (
                (shared.get(name, name), parameter)
                for name, parameter in stage.module.named_parameters()
            ),
            config,
            mesh,
            tied=next(iter(shared.values()), ""),
            tied_group=tied_group if shared else None,
            layers=tuple(f"{name}." for name in stage.layers if name),
            partial_over_tp=partial,
        )
    return ParallelModel(
        stages=stages, weights=weights, sync=gradient_sync(stages.values(), weights, config)
    )


def own_stage(built: BuiltModel, number: int, config: ParallelConfig) -> OwnStage:
    """The pipeline stage with this number, before any other parallelism. Changes `built.model`."""
    count = config.pp * config.virtual_stages
    return OwnStage(
        cut(built, number, count),
        is_first=number == 0,
        is_last=number == count - 1,
        dtype=DTYPES[config.precision],
        chunked=config.loss == "chunked",
    )


def _parallelize_stage(
    stage: OwnStage,
    request: TrialRequest,
    plan: Mapping[str, Any],
    mesh: Mesh,
    device: torch.device,
) -> frozenset[str]:
    """Apply the config to the stage. Returns the names of unsharded weights whose gradients must be
    summed over tp."""
    config, peft = request.config, request.workload.peft
    dtype = DTYPES[config.precision]
    partial: frozenset[str] = frozenset()
    if config.tp > 1:
        partial = apply_plan(stage.module, plan, mesh.axes["tp"])
    if peft is not None:
        host = torch.device("cpu")
        start = functools.partial(
            initial_value, spec=request.workload.model, seed=request.seed, device=host
        )
        linears = adapted(stage.built, peft)
        apply_own_adapters(stage.module, linears, peft.rank, dtype, start)
        summed = [name for name in linears if f"{name}.weight" in partial]
        partial |= {f"{name}.adapters.{key}" for name in summed for key in ("a", "b")}

    if config.recompute == "full":
        recompute(stage.layers.values())
    elif config.recompute == "selective":
        inner = {module for block in stage.layers.values() for module in block.modules()}
        recompute(module for module in _attention(stage) if module in inner)
    # after recomputation, so that the compiler sees it and fuses it into the backward pass
    if config.compile:
        apply_compile(stage.layers.values())

    # last: FSDP's hooks must wrap everything above, and each block is moved to the device before the
    # next one
    if config.zero_stage >= 2:
        shard = functools.partial(
            shard_module, mesh=mesh.shards_of("dp_cp"), stage=config.zero_stage, dtype=dtype
        )
        for block in (block for block in stage.layers.values() if block is not stage.module):
            shard(block, cast_inputs=True)
        if config.pp == 1:
            shard(stage.module, cast_inputs=True)
        else:
            # the stage itself, because torch's schedules call methods of FSDP on it, and a part of a
            # class runs without the class's own forward pass. Inputs are not cast, because the loss
            # uses them too; autocast casts them for the first products.
            shard(stage)
    if any(tensor.device.type != device.type for tensor in (*stage.parameters(), *stage.buffers())):
        stage.to(device)  # only if needed, because torch does not move fake tensors at all
    return partial


def _attention(stage: OwnStage) -> list[nn.Module]:
    names = attention_modules(stage.module, tuple(name for name in stage.layers if name))
    if not names:
        raise ConfigError(
            "recompute=selective runs attention again, but no module in the model's blocks has attention (attn) in its name",
            remedy="use recompute=full",
            field="recompute",
        )
    return [stage.module.get_submodule(name) for name in names]


def adapted(built: BuiltModel, peft: Peft) -> dict[str, nn.Linear]:
    """The projections that get adapters: all in the blocks (in the model, if it has no blocks), or
    those of the blocks' attention. Raises `ConfigError` if there are none."""
    blocks = block_names(built)
    inside = attention_modules(built.model, blocks) if peft.targets == "attention" else blocks
    prefixes = tuple(f"{name}." for name in inside)
    linears = {
        name: module
        for name, module in built.model.named_modules()
        # without the router: its choice of experts has no gradient
        if type(module) is nn.Linear
        and not name.endswith("router")
        and (not blocks or name.startswith(prefixes))
    }
    if not linears:
        raise ConfigError(
            f"peft.targets={peft.targets} finds no Linear module for adapters",
            remedy="set targets to all, or train all weights",
            field="peft",
        )
    return linears


WHOLE_INPUT = ("rowwise_split_input", "rowwise_rep")
"""styles of row-wise split modules whose input is whole"""
GATHERED = ("colwise_gather_output", "colwise_rep")
"""styles of column-wise split modules whose output is gathered"""


def whole_plan(built: BuiltModel) -> dict[str, Any]:
    """The style of each split module of a whole model. If a projection that is split over the
    vocabulary is tied to an embedding, the embedding is split too."""
    plan = dict(planned(built))
    for other, first in aliases(built.model).items():
        names = other.rpartition(".")[0], first.rpartition(".")[0]
        for module_name, partner in (names, names[::-1]):
            if plan.get(module_name) in ("colwise", *GATHERED) and partner not in plan:
                plan[partner] = "embedding_rowwise"
    return plan


def apply_plan(module: nn.Module, plan: Mapping[str, Any], mesh: DeviceMesh) -> frozenset[str]:
    """Split the weights of a stage's module over tp, in place. Returns the names of unsharded
    weights whose gradients must be summed over tp."""
    shared = aliases(module)
    partial: set[str] = set()
    modules = dict(module.named_modules())
    for name, style in plan.items():
        inner = modules.get(name)
        if inner is None or isinstance(inner, Skip):
            continue
        if style == "replicated_with_grad_allreduce":
            partial |= {f"{name}.{key}" for key, _ in inner.named_parameters()}
        elif style != "replicate":
            parallelize_module(inner, mesh, _style(name, inner, style), src_data_rank=None)
    for other, first in shared.items():  # share weights again, which are split in the same way
        owner, _, key = other.rpartition(".")
        first_owner, _, first_key = first.rpartition(".")
        weight = getattr(module.get_submodule(first_owner), first_key)
        setattr(module.get_submodule(owner), key, weight)
    return frozenset(partial)


def _style(name: str, module: nn.Module, style: Any) -> Any:
    if not isinstance(style, str):
        return style
    expected = nn.Embedding if style == "embedding_rowwise" else nn.Linear
    if not isinstance(module, expected):
        raise ConfigError(
            f"the style {style!r} splits a {expected.__name__}, but {name} is a {type(module).__name__}",
            remedy="name its projections in the plan, or use your own torch ParallelStyle",
            field="model.tp_plan",
        )
    if style in ("embedding_rowwise", *WHOLE_INPUT):
        return RowwiseParallel(input_layouts=Replicate())
    if style == "rowwise":
        return RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate() if style in GATHERED else Shard(-1))
