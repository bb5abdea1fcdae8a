"""Data parallelism with cut weights: ZeRO stages 2 and 3 by FSDP2 (`fully_shard`, Zhao et al. 2023,
arXiv:2304.11277).

Stage 3 frees the gathered weights of a layer after its forward pass and gathers them again for its
backward pass; stage 2 keeps them until its backward pass is done, so that only gradients and
optimizer state stay cut. Micro-batches before the last reduce nothing. On a mesh of two axes the
weights are cut over the second alone, and the ranks of the first hold replicas of the shards
(hybrid sharding, HSDP): gradients are reduce-scattered over the shards and all-reduced over the
replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from autotune_workers.training.parallel.collective_ops import reduce_scatter_single
from autotune_workers.training.parallel.gradient_sync import Shard, Weight, local


def shard_module(
    module: nn.Module,
    mesh: DeviceMesh,
    *,
    stage: int,
    dtype: torch.dtype,
    cast_inputs: bool = False,
) -> None:
    """Cuts the module's weights over the mesh (those that no inner module has taken).
    `cast_inputs`: what flows in is made to be of the dtype."""
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=cast_inputs
    )
    fully_shard(module, mesh=mesh, reshard_after_forward=stage == 3, mp_policy=policy)
    assert isinstance(module, FSDPModule)
    # losses are scaled so that the sum over ranks is the mean: experts, which fewer ranks share,
    # need no factor of their own
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def free_gathered(stage: nn.Module) -> None:
    """After a forward pass without a backward pass: gives up whole weights that stage 2, and the
    last module of stage 3, kept for it."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class WatchedReduceScatter:
    """FSDP's reduce-scatter (`FSDPModule.set_custom_reduce_scatter`), which notes the squared norm
    of this rank's own gradients on their way."""

    def __init__(self) -> None:
        self.square: Tensor | None = None
        """of all that was sent since it was set to None"""

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Memory for what is sent and received."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Sends the gradients, which FSDP has padded with zeros."""
        square = torch.linalg.vector_norm(input_tensor).square()
        self.square = square if self.square is None else self.square + square
        return reduce_scatter_single(
            output_tensor, input_tensor, group=group, op=op, async_op=async_op
        )


class FullySharded:
    """Gradient synchronization of ZeRO stages 2 and 3."""

    def __init__(
        self, modules: Iterable[nn.Module], weights: Iterable[Weight], *, stage: int
    ) -> None:
        self._modules = [m for m in modules if isinstance(m, FSDPModule)]
        self._weights = list(weights)
        # gradients of cut and uncut weights travel together, and those of tied ones are added up
        # afterwards
        self._sees_all = all(w.copies == 1 and w.also_group is None for w in self._weights)
        self._sent = WatchedReduceScatter()
        for module in self._modules if self._sees_all else ():
            module.set_custom_reduce_scatter(cast("Any", self._sent))
        self._stage = stage
        self._backwards = 0
        self._values = [local(w.parameter.detach()) for w in self._weights]
        self.shards = [
            Shard(
                tensor=v,
                name=w.name,
                copies=w.copies * (1 if w.replica_group is None else w.replica_group.size()),
            )
            for v, w in zip(self._values, self._weights, strict=True)
        ]

    @property
    def local_square(self) -> Tensor | None:
        """See `GradientSync`; not known where tp leaves some weights uncut or a pipeline ties
        two."""
        return self._sent.square

    def expect(self, backwards: int) -> None:
        """See `GradientSync`."""
        self._backwards, self._sent.square = backwards, None

    def micro_batch(self, index: int) -> None:
        """Before the forward pass of a micro-batch outside a pipeline (whose stages see to this
        themselves)."""
        last = index == self._backwards - 1
        for module in self._modules:
            module.set_requires_gradient_sync(last)
            module.set_is_last_backward(last)
            if self._stage == 2:
                module.set_reshard_after_backward(last)

    def finish(self) -> None:
        """See `GradientSync`."""
        for weight, value in zip(self._weights, self._values, strict=True):
            grad = weight.parameter.grad
            value.grad = torch.zeros_like(value) if grad is None else local(grad)
            if weight.also_group is not None:
                dist.all_reduce(value.grad, group=weight.also_group)

    def publish(self) -> None:
        """See `GradientSync`."""
        for weight, value in zip(self._weights, self._values, strict=True):
            value.grad = weight.parameter.grad = None
