"""Tensor parallelism of a model that code builds, by its plan: each module that the plan names is cut over the `tp` axis as DTensors.

What flows between modules stays plain tensors, as every tp rank computes them: outputs of a column cut are this rank's part, all else is whole. Weights that
no entry cuts are equal on all tp ranks. `autotune_workers.own_model.tensor_plan` has the names of the styles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from autotune.errors import ConfigError
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.own_model.tensor_plan import planned
from autotune_workers.training.own_cut import aliases
from autotune_workers.training.own_stage import Skip

WHOLE_INPUT = ("rowwise_split_input", "rowwise_rep")
GATHERED = ("colwise_gather_output", "colwise_rep")


def whole_plan(built: BuiltModel) -> dict[str, Any]:
    """The style of each module of a whole model that is cut: a projection that is tied to an embedding is cut over the vocabulary, and so is that."""
    plan = dict(planned(built))
    for other, first in aliases(built.model).items():
        names = other.rpartition(".")[0], first.rpartition(".")[0]
        for one, partner in (names, names[::-1]):
            if plan.get(one) in ("colwise", *GATHERED) and partner not in plan:
                plan[partner] = "embedding_rowwise"
    return plan


def apply_plan(module: nn.Module, plan: Mapping[str, Any], mesh: DeviceMesh) -> frozenset[str]:
    """Cuts the weights of what a stage holds of the module, in place. Returns the names of whole weights whose gradients are parts of a sum over tp."""
    shared = aliases(module)
    partial: set[str] = set()
    held = dict(module.named_modules())
    for name, style in plan.items():
        inner = held.get(name)
        if inner is None or isinstance(inner, Skip):
            continue
        if style == "replicated_with_grad_allreduce":
            partial |= {f"{name}.{key}" for key, _ in inner.named_parameters()}
        elif style != "replicate":
            parallelize_module(inner, mesh, _style(name, inner, style), src_data_rank=None)
    for other, first in shared.items():  # cut alike, and still one weight
        owner, _, key = other.rpartition(".")
        holder, _, kept = first.rpartition(".")
        setattr(module.get_submodule(owner), key, getattr(module.get_submodule(holder), kept))
    return frozenset(partial)


def _style(name: str, module: nn.Module, style: Any) -> Any:
    if not isinstance(style, str):
        return style
    wanted = nn.Embedding if style == "embedding_rowwise" else nn.Linear
    if not isinstance(module, wanted):
        raise ConfigError(
            f"the style {style!r} cuts a {wanted.__name__}, but {name} is a {type(module).__name__}",
            remedy="name its projections in the plan, or give a torch ParallelStyle of your own",
            field="model.tp_plan",
        )
    if style in ("embedding_rowwise", *WHOLE_INPUT):
        return RowwiseParallel(input_layouts=Replicate())
    if style == "rowwise":
        return RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate() if style in GATHERED else Shard(-1))
