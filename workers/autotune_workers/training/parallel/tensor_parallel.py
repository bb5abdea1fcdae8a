"""Tensor parallelism: each matrix of a stage is sharded over the `tp` axis as a DTensor (Shoeybi et
al. 2019, arXiv:1909.08053).

    column-wise   wq wk wv up gate output      row-wise   wo down (their outputs are summed) and the embedding (over the vocabulary)

With sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198), the residual stream and the
norms have only s / tp positions: the sum after a row-wise split matrix becomes a reduce-scatter,
and attention and MLP begin with an all-gather. The logits stay split over the vocabulary, and the
loss is computed on the split logits. Without sequence parallelism, norms and position embeddings
are plain tensors, equal on all tp ranks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from autotune_workers.training.model.decoder import Block, DecoderStage, Mlp
from autotune_workers.training.model.loss import VocabularySlice
from autotune_workers.training.torch_internals import local_shape_and_offset


def apply_tensor_parallel(
    stage: DecoderStage, mesh: DeviceMesh, *, sequence_parallel: bool
) -> None:
    """Convert the stage's weights to DTensors over `mesh`, and add collectives around its modules.
    The weights may be on the meta device."""
    stream = Shard(1) if sequence_parallel else Replicate()
    for block in stage.layers.values():
        _split_block(block, mesh, stream)
    plan: dict[str, Any] = {}
    if stage.embed is not None:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=stream)
    if stage.output is not None:
        plan["output"] = ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1))
        if sequence_parallel:
            plan["norm"] = SequenceParallel()
    parallelize_module(stage, mesh, plan)
    stage.tie()
    if stage.positions is not None and sequence_parallel:
        _split_positions(stage.positions, mesh)


def _split_block(block: Block, mesh: DeviceMesh, stream: Replicate | Shard) -> None:
    entry = {"input_layouts": (stream,), "desired_input_layouts": (Replicate(),)}
    plan: dict[str, Any] = {
        "attention": PrepareModuleInput(
            input_layouts=(stream, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=stream),
    }
    if isinstance(block.mlp, Mlp):
        plan["mlp"] = PrepareModuleInput(**entry)
        plan.update({f"mlp.{name}": style for name, style in _mlp_plan(block.mlp, stream).items()})
    else:
        plan["mlp"] = PrepareModuleInputOutput(
            **entry,
            use_local_input=True,
            output_layouts=(Replicate(),),
            desired_output_layouts=(stream,),
        )
        for name, module in block.mlp.named_modules():
            if isinstance(module, Mlp):
                plan.update(
                    {
                        f"mlp.{name}.{key}": style
                        for key, style in _mlp_plan(module, Replicate()).items()
                    }
                )
    if isinstance(stream, Shard):
        plan.update({"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()})
    parallelize_module(block, mesh, plan)


def _mlp_plan(mlp: Mlp, stream: Replicate | Shard) -> dict[str, Any]:
    columns = ("up",) if mlp.gate is None else ("up", "gate")
    return {
        **{name: ColwiseParallel() for name in columns},
        "down": RowwiseParallel(output_layouts=stream),
    }


def _split_positions(module: nn.Module, mesh: DeviceMesh) -> None:
    def partition(_: str, inner: nn.Module, mesh: DeviceMesh) -> None:
        weight = distribute_tensor(inner.weight, mesh, [Replicate()], src_data_rank=None)
        inner.register_parameter("weight", nn.Parameter(weight))

    distribute_module(
        module,
        mesh,
        partition,
        lambda _, inputs, mesh: (DTensor.from_local(inputs[0], mesh, [Shard(0)], run_check=False),),
        lambda _, output, mesh: output.to_local(),
    )


def local_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of the whole value of a parameter; all of it if the parameter is not a
    DTensor."""
    if not isinstance(parameter, DTensor):
        return whole
    shape, offset = local_shape_and_offset(whole.shape, parameter.device_mesh, parameter.placements)
    return whole[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]


def vocabulary_slice(vocab_size: int, mesh: DeviceMesh) -> VocabularySlice:
    """The slice of token ids whose logits this rank computes."""
    (size,), (start,) = local_shape_and_offset((vocab_size,), mesh, [Shard(0)])
    return VocabularySlice(
        start=start, size=size, group=mesh.get_group() if mesh.size() > 1 else None
    )


def whole_stream(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The residual stream of all positions as a plain tensor (b, s, h). Its gradient is summed over
    tp."""
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
