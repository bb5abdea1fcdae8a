"""Data parallelism with sharded weights: ZeRO stages 2 and 3 with FSDP2 (`fully_shard`, Zhao et al.
2023, arXiv:2304.11277).

Stage 3 frees the gathered weights of a layer after its forward pass and gathers them again for its
backward pass. Stage 2 keeps them until the end of its backward pass, so that only gradients and
optimizer state are sharded. Only the last micro-batch of a step reduces gradients. On a
two-dimensional mesh, weights are sharded over the second axis and replicated over the first (hybrid
sharding, HSDP): gradients are reduce-scattered over the shards and all-reduced over the replicas.
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
    """Shard the module's weights over the mesh, except those of inner modules that were sharded
    before. `cast_inputs`: whether the module's inputs are cast to the dtype."""
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=cast_inputs
    )
    fully_shard(module, mesh=mesh, reshard_after_forward=stage == 3, mp_policy=policy)
    assert isinstance(module, FSDPModule)
    # losses are scaled so that the sum over ranks is the mean, also for experts, which fewer ranks
    # share
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo supports only sums


def free_gathered(stage: nn.Module) -> None:
    """Free the gathered weights after a forward pass without a backward pass, for which stage 2, and
    the last module of stage 3, keep them."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class WatchedReduceScatter:
    """A reduce-scatter for FSDP (`FSDPModule.set_custom_reduce_scatter`) that computes the squared
    norm of this rank's gradients before they are summed."""

    def __init__(self) -> None:
        self.square: Tensor | None = None
        """squared norm of everything sent since it was set to None"""

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Allocate memory for sending and receiving."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce-scatter the gradients, which FSDP has padded with zeros."""
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
        # the norm is unknown if tp leaves some weights unsharded, whose gradients are sent together
        # with others, and for tied weights, whose gradients are summed later
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
        """See `GradientSync`; None if tp leaves some weights unsharded or a pipeline has tied
        weights."""
        return self._sent.square

    def expect(self, backwards: int) -> None:
        """See `GradientSync`."""
        self._backwards, self._sent.square = backwards, None

    def micro_batch(self, index: int) -> None:
        """To be called before the forward pass of each micro-batch. Not needed in a pipeline, whose
        stages do it."""
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
