"""Collectives on flat tensors for all supported torch releases, and differentiable collectives.

torch 2.13 renamed `all_gather_into_tensor` and `reduce_scatter_tensor`, and warns about the old
names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class GatherFirst(torch.autograd.Function):
    """All-gather along the first axis. The backward pass is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """(n, ...) -> (n * ranks, ...)."""
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """(n * ranks, ...) -> (n, ...), summed in fp32."""
        return _reduce_scatter(grads[0].float(), ctx.group).to(grads[0].dtype), None


class ReduceScatterFirst(torch.autograd.Function):
    """Reduce-scatter along the first axis. The backward pass is an all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        """(n * ranks, ...) -> (n, ...)."""
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """(n, ...) -> (n * ranks, ...)."""
        return _all_gather(grads[0], ctx.group), None


class Exchange(torch.autograd.Function):
    """All-to-all of rows: `sent[r]` rows go to rank r, `received[r]` rows come from it. The backward
    pass sends them back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        """(sum of sent, h) -> (sum of received, h)."""
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """(sum of received, h) -> (sum of sent, h)."""
        return _exchange(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    all_gather_single(out, x.contiguous(), group=group)
    return out


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    reduce_scatter_single(out, x.contiguous(), group=group)
    return out


def _exchange(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out
