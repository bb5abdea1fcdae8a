"""What gradient synchronization works on: the weights of a rank, the tensors that its optimizer
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
    """A parameter with what its gradient needs."""

    name: str
    """in the whole model"""
    parameter: nn.Parameter
    group: dist.ProcessGroup | None
    """ranks that hold the same values and see other data; None when there is only this one"""
    shard_group: dist.ProcessGroup | None = None
    """those of `group` among which shards are divided; None for all of them"""
    replica_group: dist.ProcessGroup | None = None
    """those of `group` that hold the same shard; None when there are no replicas"""
    also_group: dist.ProcessGroup | None = None
    """ranks over which the gradient is summed first: first and last pipeline rank, for a tied
    embedding that both hold, or tp ranks that see other parts of what flows"""
    in_layer: bool = False
    """whether it belongs to one of the repeated layers"""
    copies: int = 1
    """ranks outside `group` that hold the same values: tp ranks of a weight that is not sharded,
    ranks of `also_group`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What the optimizer of this rank updates: a plain tensor whose gradient is set when a step's
    gradients are complete."""

    tensor: Tensor
    name: str
    """of the weight in the whole model; empty for a slice of several weights"""
    copies: int
    """ranks that hold and update these same values"""
    in_layer: bool = False
    """whether it is a weight of one of the repeated layers"""


class GradientSync(Protocol):
    """Completes the gradients of a step. `Replicated` does so for ZeRO stages 0 and 1,
    `FullySharded` for 2 and 3."""

    shards: list[Shard]

    @property
    def local_square(self) -> Tensor | None:
        """Squared norm of this rank's own gradient before it was summed, where it is known."""

    def expect(self, backwards: int) -> None:
        """A step begins: so many backward passes add to each gradient before it is complete."""

    def finish(self) -> None:
        """Waits until every shard's gradient is the sum over ranks."""

    def publish(self) -> None:
        """After the optimizer: makes the updated values known to all ranks, and forgets the
        gradients."""


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's part of the gradient, summed over tp where it is partial; zeros for a weight that
    no token met."""
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
    """The weights of a stage that are trained, each with the ranks over which its gradient is
    summed.

    `parameters`: with their names in the whole model. `tied`: the one that the first and the last
    stage share. `layers`: how names of weights in layers begin. `partial_over_tp`: whole weights
    that see a part of what flows, so that their gradients are summed over tp.
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
        is_cut = axis in mesh.hybrid
        is_tied = name == tied and tied_group is not None
        if is_tied:
            also_group = tied_group
        else:
            also_group = mesh.group("tp") if name in partial_over_tp else None
        yield Weight(
            name=name,
            parameter=parameter,
            group=mesh.group(axis) if axis else None,
            shard_group=mesh.group(f"{axis}_shard") if is_cut else None,
            replica_group=mesh.group(f"{axis}_replica") if is_cut else None,
            also_group=also_group,
            in_layer=name.startswith(layers),
            copies=(1 if _is_sharded(parameter, "tp") else config.tp) * (2 if is_tied else 1),
        )


def _is_sharded(parameter: nn.Parameter, axis: str) -> bool:
    """Whether the ranks of that mesh axis hold different parts of it."""
    if not isinstance(parameter, DTensor):
        return False
    axes = parameter.device_mesh.mesh_dim_names or ()
    return any(
        p.is_shard() for p, name in zip(parameter.placements, axes, strict=True) if name == axis
    )
