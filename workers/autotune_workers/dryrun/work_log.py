"""Counts the arithmetic of one rank (FLOPs by module and phase, shapes of matrix products) and its
communication (kind, group, bytes and phase of each call).

FLOPs. A multiplication and an addition are two. `torch.utils.flop_counter.flop_registry` has most
operations; added here are the CPU's flash attention, attention with fewer key heads than query
heads, grouped products (one for all experts) and matrix-vector products. Attention counts all
scores, masked ones too, as the registry does. Element-wise operations are not counted.

Communication. Collectives come in two kinds:

    in place      torch.ops.c10d               FSDP, gradient buckets, pipelines, expert and context parallelism
    functional    torch.ops._c10d_functional   DTensor: tensor and sequence parallelism

Bytes are the sizes of the tensors, see `autotune.spec.CollectiveCall`. Barriers are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from autotune.spec import CollectiveCall, MatrixProduct, Phase
from autotune_workers.dryrun.torch_private import group_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOp:
    """How to read the arguments of a collective operation."""

    kind: str
    """see `CollectiveCall`"""
    group: int
    """index of the argument with the process group"""
    counted: int = 0
    """index of the argument whose bytes are counted; -1: the result"""


IN_PLACE = {
    "allreduce_": CollectiveOp(kind="all_reduce", group=1),
    "allreduce_coalesced_": CollectiveOp(kind="all_reduce", group=1),
    "broadcast_": CollectiveOp(kind="broadcast", group=1),
    "reduce_": CollectiveOp(kind="reduce", group=1),
    "allgather_": CollectiveOp(kind="all_gather", group=2),
    "_allgather_base_": CollectiveOp(kind="all_gather", group=2),
    "allgather_coalesced_": CollectiveOp(kind="all_gather", group=2),
    "allgather_into_tensor_coalesced_": CollectiveOp(kind="all_gather", group=2),
    "reduce_scatter_": CollectiveOp(kind="reduce_scatter", group=2, counted=1),
    "_reduce_scatter_base_": CollectiveOp(kind="reduce_scatter", group=2, counted=1),
    "reduce_scatter_tensor_coalesced_": CollectiveOp(kind="reduce_scatter", group=2, counted=1),
    "alltoall_": CollectiveOp(kind="all_to_all", group=2, counted=1),
    "alltoall_base_": CollectiveOp(kind="all_to_all", group=2, counted=1),
    "gather_": CollectiveOp(kind="gather", group=2, counted=1),
    "scatter_": CollectiveOp(kind="scatter", group=2),
    "send": CollectiveOp(kind="send", group=1),
    "recv_": CollectiveOp(kind="recv", group=1),
    "recv_any_source_": CollectiveOp(kind="recv", group=1),
}
FUNCTIONAL = {
    "all_reduce": CollectiveOp(kind="all_reduce", group=2),
    "all_reduce_": CollectiveOp(kind="all_reduce", group=2),
    "all_reduce_coalesced": CollectiveOp(kind="all_reduce", group=2),
    "broadcast": CollectiveOp(kind="broadcast", group=2),
    "broadcast_": CollectiveOp(kind="broadcast", group=2),
    "all_gather_into_tensor": CollectiveOp(kind="all_gather", group=2, counted=-1),
    "all_gather_into_tensor_out": CollectiveOp(kind="all_gather", group=2, counted=-1),
    "all_gather_into_tensor_coalesced": CollectiveOp(kind="all_gather", group=2, counted=-1),
    "reduce_scatter_tensor": CollectiveOp(kind="reduce_scatter", group=3),
    "reduce_scatter_tensor_coalesced": CollectiveOp(kind="reduce_scatter", group=3),
    "all_to_all_single": CollectiveOp(kind="all_to_all", group=3),
    "shard_dim_alltoall": CollectiveOp(kind="all_to_all", group=3),
}
NAMESPACES = {
    "c10d": IN_PLACE,
    "_c10d_functional": FUNCTIONAL,
    "_c10d_functional_autograd": FUNCTIONAL,
    "_dtensor": FUNCTIONAL,
}
OTHER_RANKS = "ranks"
"""used as axis name for groups that are no axis of the mesh"""
Call = tuple[str, tuple[int, ...], int, Phase]
"""(kind, ranks of the group, bytes, phase)"""


class CollectiveLog:
    """Counts the collectives and messages of a step."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        """number of each kind of call, in order of first appearance"""
        self._ranks: dict[Any, tuple[int, ...]] = {}

    def note(
        self, func: Any, args: tuple[Any, ...], out: Any, phase: Phase
    ) -> tuple[CollectiveOp, tuple[int, ...], int]:
        """Counts a call of an operation that `operation_of` recognizes. Returns the kind of
        operation, the ranks of its group, and its bytes."""
        operation = operation_of(func)
        assert operation is not None
        group = group_of(args[operation.group])
        name = group.group_name
        if name not in self._ranks:
            self._ranks[name] = tuple(dist.get_process_group_ranks(group))
        counted = out if operation.counted < 0 else args[operation.counted]
        num_bytes = sum(t.nbytes for t in tensors_in(counted))
        self.calls[operation.kind, self._ranks[name], num_bytes, phase] += 1
        return operation, self._ranks[name], num_bytes

    def as_calls(self, axes: Mapping[tuple[int, ...], str]) -> tuple[CollectiveCall, ...]:
        """All calls. `axes`: names of mesh axes by the ranks of their group."""
        return tuple(
            CollectiveCall(
                kind=kind,
                axis=axes.get(ranks, OTHER_RANKS),
                ranks=ranks,
                num_bytes=num_bytes,
                phase=phase,
                count=count,
            )
            for (kind, ranks, num_bytes, phase), count in self.calls.items()
        )


def operation_of(func: Any) -> CollectiveOp | None:
    """How to read an operation of torch; None if it is no collective."""
    known = NAMESPACES.get(func.namespace)
    return None if known is None else known.get(func._opname)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [t for inner in value for t in tensors_in(inner)] if isinstance(value, list | tuple) else []
    )


aten = torch.ops.aten
Formula = Callable[..., int]


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    """FLOPs of the scores and their product with the values. q: (b, a, s, d), k and v: (b, k, s',
    d) with k <= a heads."""
    return 2 * prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])


def _attention_backward(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> int:
    """FLOPs of five products: recomputed scores, and gradients of scores, queries, keys and
    values."""
    return 2 * prod(q.shape[:-1]) * k.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])


def _grouped(a: Tensor, b: Tensor, *_: Any, out_val: Any = None, **__: Any) -> int:
    """FLOPs of a grouped product: each row of the result is a row times its group's matrix."""
    if a.dim() == 2 and b.dim() == 2:  # (m, t) by (t, n): t is divided among the groups
        return 2 * a.shape[0] * a.shape[1] * b.shape[1]
    return 2 * out_val.numel() * a.shape[-1]


def _vector(*arguments: Any, **_: Any) -> int:
    """FLOPs of a matrix, or a vector, times a vector."""
    matrix = next(
        a for a in arguments if isinstance(a, Tensor) and (a.dim() == 2 or len(arguments) == 2)
    )
    return 2 * matrix.numel()


FORMULAS: dict[Any, Formula] = {
    **flop_registry,
    **dict.fromkeys(
        (
            aten._scaled_dot_product_flash_attention_for_cpu,
            aten._scaled_dot_product_flash_attention,
            aten._scaled_dot_product_cudnn_attention,
            aten._scaled_dot_product_efficient_attention,
        ),
        _attention,
    ),
    **dict.fromkeys(
        (
            aten._scaled_dot_product_flash_attention_for_cpu_backward,
            aten._scaled_dot_product_flash_attention_backward,
            aten._scaled_dot_product_cudnn_attention_backward,
            aten._scaled_dot_product_efficient_attention_backward,
        ),
        _attention_backward,
    ),
    aten._grouped_mm: _grouped,
    aten.mv: _vector,
    aten.addmv: _vector,
    aten.dot: _vector,
}
"""FLOPs by operation, from its arguments and its result"""


def products_of(packet: Any, args: tuple[Any, ...]) -> list[tuple[int, int, int, int]]:
    """(m, n, k, count) of the matrix products of an operation; empty if it has none, or they are
    inside of a fused kernel."""
    if packet in (aten.mm, aten._scaled_mm):
        a, b = args[:2]
    elif packet is aten.addmm:
        a, b = args[1:3]
    elif packet in (aten.bmm, aten.baddbmm):
        a, b = args[:2] if packet is aten.bmm else args[1:3]
        return [(a.shape[1], b.shape[2], a.shape[2], a.shape[0])]
    elif packet is aten._grouped_mm:
        return _grouped_products(args[0], args[1], args[2] if len(args) > 2 else None)
    else:
        return []
    return [(a.shape[0], b.shape[1], a.shape[1], 1)]


def _grouped_products(a: Tensor, b: Tensor, ends: Tensor | None) -> list[tuple[int, int, int, int]]:
    """(m, n, k, count) of a grouped product, assuming groups of equal size. `ends`: row or column at
    which each group ends."""
    if a.dim() == 3:
        groups = a.shape[0]
        return [(a.shape[1], b.shape[-1] // (1 if b.dim() == 3 else groups), a.shape[2], groups)]
    if b.dim() == 3:
        groups = b.shape[0]
        return [(a.shape[0] // groups, b.shape[2], a.shape[1], groups)]
    groups = len(ends) if ends is not None else 1
    return [(a.shape[0], b.shape[1], a.shape[1] // groups, groups)]


class WorkLog:
    """Counts FLOPs and matrix products of a step."""

    def __init__(self) -> None:
        self.flops: Counter[tuple[str, Phase]] = Counter()
        """by module and phase"""
        self._products: Counter[tuple[int, int, int, str]] = Counter()

    def note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        place: tuple[str, Phase],
    ) -> None:
        """Counts an operation that has a formula. `place`: module and phase."""
        packet = func._overloadpacket
        self.flops[place] += FORMULAS[packet](*args, **kwargs, out_val=out)
        dtype = str(
            (args[1] if packet in (aten.addmm, aten.baddbmm) else args[0]).dtype
        ).removeprefix("torch.")
        for m, n, k, count in products_of(packet, args):
            self._products[m, n, k, dtype] += count

    def products(self, micro_batches: int) -> tuple[MatrixProduct, ...]:
        """The matrix products of one micro-batch, given the number of micro-batches of the step."""
        return tuple(
            MatrixProduct(m=m, n=n, k=k, dtype=dtype, count=max(1, round(count / micro_batches)))
            for (m, n, k, dtype), count in self._products.items()
        )
