"""Data parallelism with replicated weights: ZeRO stage 0 (gradients are summed) and stage 1 (the
optimizer's state is sharded too).

Gradients are sent in flat buckets of about 25 MB, each as soon as its last gradient of the step is
complete, so that communication overlaps the rest of the backward pass (Li et al. 2020,
arXiv:2006.15704, section 3.2). Only the last micro-batch of a step communicates. Stage 1
(Rajbhandari et al. 2020, arXiv:1910.02054, section 5.1) reduce-scatters the gradients, updates one
shard per rank and all-gathers the weights. With replicas of shards, it reduce-scatters within each
replica and sums each shard over the replicas. The algorithm is that of torch's DDP, which does not
support weights that are DTensors, nor pipeline stages whose weight gradients bypass autograd hooks.

Losses are scaled so that the sum over ranks is the mean gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune_workers.training.parallel.collective_ops import (
    all_gather_single,
    reduce_scatter_single,
)
from autotune_workers.training.parallel.gradient_sync import Shard, Weight, local, local_gradient

BUCKET_BYTES = 25 << 20
"""maximum size of a bucket, as in DDP"""


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Weights of one group whose gradients are sent together."""

    weights: list[Weight]
    group: dist.ProcessGroup | None
    """ranks over which the gradients are summed"""
    shard_group: dist.ProcessGroup | None
    """stage 1: the ranks among them that share the optimizer's state"""
    replica_group: dist.ProcessGroup | None
    """stage 1: the ranks among them that have the same shard; None without replicas"""
    late: bool
    """whether it has tied weights, whose gradients are complete only after all stages"""
    missing: int = 0
    flat: Tensor | None = None
    part: Tensor | None = None
    work: dist.Work | None = None
    values: list[Tensor] = field(default_factory=list)
    shard: Tensor | None = None
    """stage 1: this rank's slice of the flat weights"""

    @property
    def world(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def shards(self) -> int:
        return 1 if self.shard_group is None else self.shard_group.size()


class Replicated:
    """Gradient synchronization of ZeRO stages 0 and 1."""

    def __init__(self, weights: Iterable[Weight], *, stage: int) -> None:
        self.local_square: Tensor | None = None
        self._sharded = stage == 1
        self._buckets = _fill_buckets(list(weights))
        self._bucket_of = {w.parameter: b for b in self._buckets for w in b.weights}
        self._counts: dict[nn.Parameter, int] = {}
        self._backwards = 0
        self._launched = 0
        self.shards: list[Shard] = []
        for bucket in self._buckets:
            bucket.values = [local(w.parameter.detach()) for w in bucket.weights]
            self.shards += self._make_shards(bucket)
        # a weak reference, because a cycle of weight, hook and self would keep the weights alive
        arrived = weakref.WeakMethod(self._arrived)

        def hook(parameter: nn.Parameter) -> None:
            if (method := arrived()) is not None:
                method(parameter)

        for bucket in self._buckets:
            for weight in bucket.weights if bucket.group is not None else ():
                weight.parameter.register_post_accumulate_grad_hook(hook)

    def _make_shards(self, bucket: Bucket) -> list[Shard]:
        if not self._sharded or bucket.group is None:
            copies = bucket.world
            return [
                Shard(tensor=v, name=w.name, copies=w.copies * copies, in_layer=w.in_layer)
                for v, w in zip(bucket.values, bucket.weights, strict=True)
            ]
        assert bucket.shard_group is not None
        flat = _flatten(bucket.values, bucket.shards)
        bucket.shard = flat.chunk(bucket.shards)[bucket.shard_group.rank()].clone()
        replicas = bucket.world // bucket.shards
        return [Shard(tensor=bucket.shard, name="", copies=bucket.weights[0].copies * replicas)]

    def expect(self, backwards: int) -> None:
        """See `GradientSync`."""
        self._backwards, self._launched, self.local_square = backwards, 0, None
        self._counts = dict.fromkeys(self._bucket_of, 0)
        for bucket in self._buckets:
            bucket.missing = len(bucket.weights)

    def _arrived(self, parameter: nn.Parameter) -> None:
        self._counts[parameter] += 1
        if self._counts[parameter] == self._backwards:
            self._bucket_of[parameter].missing -= 1
            # launched in order, because all ranks must start their collectives in the same order,
            # and ranks whose experts get no tokens lack some gradients
            while self._launched < len(self._buckets) and self._is_ready(
                self._buckets[self._launched]
            ):
                self._launch(self._buckets[self._launched])

    @staticmethod
    def _is_ready(bucket: Bucket) -> bool:
        return bucket.missing == 0 and not bucket.late and bucket.group is not None

    def _launch(self, bucket: Bucket) -> None:
        self._launched += 1
        grads = [local_gradient(w.parameter) for w in bucket.weights]
        for grad, weight in zip(grads, bucket.weights, strict=True):
            if weight.also_group is not None:
                dist.all_reduce(grad, group=weight.also_group)
            weight.parameter.grad = None
        if bucket.group is None:
            for value, grad in zip(bucket.values, grads, strict=True):
                value.grad = grad
            return
        bucket.flat = _flatten(grads, bucket.shards)
        del grads
        square = torch.linalg.vector_norm(bucket.flat).square() / bucket.weights[0].copies
        self.local_square = square if self.local_square is None else self.local_square + square
        if self._sharded:
            bucket.part = torch.empty_like(bucket.flat[: bucket.flat.numel() // bucket.shards])
            bucket.work = reduce_scatter_single(
                bucket.part, bucket.flat, group=bucket.shard_group, async_op=True
            )
        else:
            bucket.work = dist.all_reduce(bucket.flat, group=bucket.group, async_op=True)

    def finish(self) -> None:
        """See `GradientSync`."""
        while self._launched < len(self._buckets):
            self._launch(self._buckets[self._launched])
        for bucket in self._buckets:
            if (
                bucket.work is not None
                and bucket.part is not None
                and bucket.replica_group is not None
            ):
                bucket.work.wait()
                bucket.work = dist.all_reduce(
                    bucket.part, group=bucket.replica_group, async_op=True
                )
        for bucket in self._buckets:
            if bucket.work is None or bucket.flat is None:
                continue
            bucket.work.wait()
            if bucket.shard is not None:
                bucket.shard.grad = bucket.part
            else:
                for value, grad in zip(
                    bucket.values, _views(bucket.flat, bucket.values), strict=True
                ):
                    value.grad = grad
            bucket.flat = bucket.part = bucket.work = None

    def publish(self) -> None:
        """See `GradientSync`."""
        for bucket in self._buckets:
            if bucket.shard is not None:
                flat = torch.empty(
                    bucket.shard.numel() * bucket.shards,
                    dtype=bucket.shard.dtype,
                    device=bucket.shard.device,
                )
                all_gather_single(flat, bucket.shard, group=bucket.shard_group)
                for value, new in zip(bucket.values, _views(flat, bucket.values), strict=True):
                    value.copy_(new)
                bucket.shard.grad = None
            for value in bucket.values:
                value.grad = None


def _fill_buckets(weights: list[Weight]) -> list[Bucket]:
    """Create buckets in the order in which gradients arrive: the last weights first, tied ones at the
    end."""
    buckets: list[Bucket] = []
    open_buckets: dict[tuple[object, ...], tuple[Bucket, int]] = {}
    arriving = weights[::-1]
    for weight in (
        *(w for w in arriving if w.also_group is None),
        *(w for w in arriving if w.also_group is not None),
    ):
        key = (weight.group, weight.copies, weight.also_group)
        size = local(weight.parameter.detach()).nbytes
        bucket, filled = open_buckets.get(key, (None, 0))
        if bucket is None or filled + size > BUCKET_BYTES:
            bucket = Bucket(
                weights=[],
                group=weight.group,
                shard_group=weight.shard_group or weight.group,
                replica_group=weight.replica_group,
                late=weight.also_group is not None,
            )
            filled = 0
            buckets.append(bucket)
        bucket.weights.append(weight)
        open_buckets[key] = (bucket, filled + size)
    return buckets


def _flatten(tensors: list[Tensor], multiple: int) -> Tensor:
    """Concatenate all values, padded with zeros to a multiple."""
    numel = sum(t.numel() for t in tensors)
    padding = tensors[0].new_zeros(-numel % multiple)
    return torch.cat([*(t.reshape(-1) for t in tensors), padding])


def _views(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    sizes = [t.numel() for t in like]
    return [v.view_as(t) for v, t in zip(flat[: sum(sizes)].split(sizes), like, strict=True)]
