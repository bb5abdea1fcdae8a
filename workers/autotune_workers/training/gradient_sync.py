"""What gradient synchronization works on: the weights of a rank, the tensors that its optimizer updates, and the protocol between them.

Losses are scaled so that the sum of a gradient over ranks is the mean gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autotune.spec import ParallelConfig
from autotune_workers.training.decoder import DecoderStage, global_names
from autotune_workers.training.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter with what its gradient needs."""

    name: str
    """in the whole model"""
    parameter: nn.Parameter
    group: dist.ProcessGroup | None
    """ranks that hold the same values and see other data; None when there is only this one"""
    tied_group: dist.ProcessGroup | None = None
    """first and last pipeline rank, for a tied embedding that both hold"""
    copies: int = 1
    """ranks outside `group` that hold the same values: tp ranks of a weight that is not sharded, ranks of `tied_group`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What the optimizer of this rank updates: a plain tensor whose gradient is set when a step's gradients are complete."""

    tensor: Tensor
    copies: int
    """ranks that hold and update these same values"""


class GradientSync(Protocol):
    """Completes the gradients of a step. `Replicated` does so for ZeRO stages 0 and 1, `FullySharded` for 2 and 3."""

    shards: list[Shard]

    @property
    def local_square(self) -> Tensor | None:
        """Squared norm of this rank's own gradient before it was summed, where it is known."""

    def expect(self, backwards: int) -> None:
        """A step begins: so many backward passes add to each gradient before it is complete."""

    def finish(self) -> None:
        """Waits until every shard's gradient is the sum over ranks."""

    def publish(self) -> None:
        """After the optimizer: makes the updated values known to all ranks, and forgets the gradients."""


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's part of the gradient, summed over tp where it is partial; zeros for a weight that no token met."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(local(parameter.detach()))
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
        return grad.redistribute(placements=parameter.placements).to_local()
    return grad


def weights_of(
    stage: DecoderStage, config: ParallelConfig, mesh: Mesh, *, tied_group: dist.ProcessGroup | None
) -> Iterator[Weight]:
    """The weights of a stage, each with the ranks over which its gradient is summed."""
    ranks = config.dp * config.cp
    dense = mesh.group("dp_cp") if ranks > 1 else None
    experts = dense if config.ep == 1 else mesh.group("expert_data") if ranks > config.ep else None
    for name, parameter in global_names(stage):
        is_tied = name == "embed.weight" and tied_group is not None
        yield Weight(
            name=name,
            parameter=parameter,
            group=experts if ".experts." in name else dense,
            tied_group=tied_group if is_tied else None,
            copies=(1 if _is_sharded(parameter, "tp") else config.tp) * (2 if is_tied else 1),
        )


def _is_sharded(parameter: nn.Parameter, axis: str) -> bool:
    """Whether the ranks of that mesh axis hold different parts of it."""
    if not isinstance(parameter, DTensor):
        return False
    axes = parameter.device_mesh.mesh_dim_names or ()
    return any(p.is_shard() for p, name in zip(parameter.placements, axes, strict=True) if name == axis)
