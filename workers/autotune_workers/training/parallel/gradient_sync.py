"""Data structures of gradient synchronization: the weights of a rank, the tensors that its optimizer
updates, and the protocol between them.

Losses are scaled so that the sum of a gradient over ranks is the mean gradient.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autotune.spec import ParallelConfig
from autotune_workers.training.parallel.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter with the process groups that its gradient is summed over."""

    name: str
    """name in the whole model"""
    parameter: nn.Parameter
    group: dist.ProcessGroup | None
    """ranks with the same values and other data; None for a single rank"""
    shard_group: dist.ProcessGroup | None = None
    """the ranks of `group` over which shards are distributed; None for all of them"""
    replica_group: dist.ProcessGroup | None = None
    """the ranks of `group` with the same shard; None without replicas"""
    also_group: dist.ProcessGroup | None = None
    """ranks over which the gradient is summed first: the first and last pipeline rank for a tied
    embedding, or tp ranks whose gradients are terms of a sum"""
    in_layer: bool = False
    """whether it belongs to one of the repeated layers"""
    copies: int = 1
    """number of ranks with the same values outside `group`: tp ranks of an unsharded weight, ranks
    of `also_group`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A plain tensor that this rank's optimizer updates. Its gradient is set when the step's
    gradients are complete."""

    tensor: Tensor
    name: str
    """name of the weight in the whole model; empty for a slice of several weights"""
    copies: int
    """number of ranks that update the same values"""
    in_layer: bool = False
    """whether it is a weight of one of the repeated layers"""


class GradientSync(Protocol):
    """Sums the gradients of a step over ranks. `Replicated` implements ZeRO stages 0 and 1,
    `FullySharded` 2 and 3."""

    shards: list[Shard]

    @property
    def local_square(self) -> Tensor | None:
        """Squared norm of this rank's gradient before it was summed; None if unknown."""

    def expect(self, backwards: int) -> None:
        """Begin a step in which each gradient is complete after this number of backward passes."""

    def finish(self) -> None:
        """Wait until every shard's gradient is the sum over ranks."""

    def publish(self) -> None:
        """After the optimizer's update, distribute the new values to all ranks and delete the
        gradients."""


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; other tensors unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's part of the gradient, summed over tp if it is partial; zeros for a weight that no
    token used."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(local(parameter.detach()))
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
        return grad.redistribute(placements=parameter.placements).to_local()
    return grad


def weights_of(
    parameters: Iterable[tuple[str, nn.Parameter]],
    config: ParallelConfig,
    mesh: Mesh,
    *,
    tied: str,
    tied_group: dist.ProcessGroup | None,
    layers: tuple[str, ...] = ("layers.",),
    partial_over_tp: Container[str] = (),
) -> Iterator[Weight]:
    """The trained weights of a stage, each with the ranks over which its gradient is summed.

    `parameters`: with names in the whole model. `tied`: name of the weight that the first and last
    stage share. `layers`: prefixes of the names of weights in layers. `partial_over_tp`: names of
    unsharded weights whose gradients must be summed over tp, because each tp rank computes only a
    part.
    """
    ranks = config.dp * config.cp
    dense = "dp_cp" if ranks > 1 else ""
    if config.ep == 1:
        experts = dense
    else:
        experts = "expert_data" if ranks > config.ep else ""
    for name, parameter in parameters:
        if not parameter.requires_grad:
            continue
        axis = experts if ".experts." in name else dense
        is_hybrid = axis in mesh.hybrid
        is_tied = name == tied and tied_group is not None
        if is_tied:
            also_group = tied_group
        else:
            also_group = mesh.group("tp") if name in partial_over_tp else None
        yield Weight(
            name=name,
            parameter=parameter,
            group=mesh.group(axis) if axis else None,
            shard_group=mesh.group(f"{axis}_shard") if is_hybrid else None,
            replica_group=mesh.group(f"{axis}_replica") if is_hybrid else None,
            also_group=also_group,
            in_layer=name.startswith(layers),
            copies=(1 if _is_sharded(parameter, "tp") else config.tp) * (2 if is_tied else 1),
        )


def _is_sharded(parameter: nn.Parameter, axis: str) -> bool:
    """Whether the parameter is sharded over this mesh axis."""
    if not isinstance(parameter, DTensor):
        return False
    axes = parameter.device_mesh.mesh_dim_names or ()
    return any(
        p.is_shard() for p, name in zip(parameter.placements, axes, strict=True) if name == axis
    )
