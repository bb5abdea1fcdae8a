"""The collectives and point-to-point messages of one rank: kind, group, bytes and phase of each call.

    in place      torch.ops.c10d               FSDP, gradient buckets, pipelines, expert and context parallelism
    functional    torch.ops._c10d_functional   DTensor, that is tensor and sequence parallelism

Bytes are those of the tensors, see `autotune.spec.CollectiveCall`. Barriers carry none and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.spec import CollectiveCall, Phase
from autotune_workers.dryrun.torch_private import group_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOp:
    """How one operation is to be read."""

    kind: str
    """see `CollectiveCall`"""
    group: int
    """place of the group among the arguments"""
    counted: int = 0
    """place of the tensors that are counted; -1: the result"""


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
"""stands for the axis of a group that is none"""
Call = tuple[str, tuple[int, ...], int, Phase]
"""Kind, ranks of the group, bytes, phase."""


class CollectiveLog:
    """Counts the calls of a step."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        """in the order of their first appearance"""
        self._ranks: dict[Any, tuple[int, ...]] = {}

    def note(
        self, func: Any, args: tuple[Any, ...], out: Any, phase: Phase
    ) -> tuple[CollectiveOp, tuple[int, ...], int]:
        """An operation of `operation_of` was called; returns how it was read, the ranks of its group, and its bytes."""
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

    def told(self, axes: Mapping[tuple[int, ...], str]) -> tuple[CollectiveCall, ...]:
        """All calls. `axes`: names of the groups that are axes of the mesh."""
        return tuple(
            CollectiveCall(
                kind=kind, axis=axes.get(ranks, OTHER_RANKS), ranks=ranks, num_bytes=num_bytes, phase=phase, count=count
            )
            for (kind, ranks, num_bytes, phase), count in self.calls.items()
        )


def operation_of(func: Any) -> CollectiveOp | None:
    """How that operation of torch is read; None where it is no collective."""
    known = NAMESPACES.get(func.namespace)
    return None if known is None else known.get(func._opname)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for inner in value for t in tensors_in(inner)] if isinstance(value, list | tuple) else []
