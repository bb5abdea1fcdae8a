"""The ranks of a host build a model that code builds in turns, where the host has no room for as many whole copies as it has ranks.

    copy    4 bytes * parameters of the whole model, in fp32, once for each pipeline stage of the rank        room    memory that the host has left
    ranks that build at once = floor(SHARE * room / copy)

A rank gives its copy back before the next turn: what it keeps lies on its device. On CPUs the device is the host; what is kept there is small against
a copy only where the config shards the weights.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from autotune.detect import free_memory_bytes
from autotune.errors import ConfigError
from autotune.spec.size import format_bytes

SHARE = 0.8
"""of the host's room that copies may take"""
SMALL_BYTES = 1 << 30
"""copies below this are built at once, without asking what room there is"""
Made = TypeVar("Made")
Seat = tuple[str, float]
"""a rank's host, and the room there as the rank sees it, in bytes"""


def in_turns(make: Callable[[], Made], *, copy_bytes: int, room: Callable[[], float] | None = None) -> Made:
    """What `make` makes, when it is this rank's turn. Collective, except for small models and in a dry run, whose tensors take no memory.

    `room`: of this host; default: what the system says is free. Raises `ConfigError` on every rank where a host has no room for one copy, and after the
    last turn what `make` raised.
    """
    if copy_bytes < SMALL_BYTES or type(torch.empty(0)) is not torch.Tensor:
        return make()
    seats: list[Seat | None] = [None] * dist.get_world_size()
    dist.all_gather_object(seats, (socket.gethostname(), (room or free_memory_bytes)()))
    turns = turns_of([seat for seat in seats if seat is not None], copy_bytes)
    made: list[Made] = []
    failed: Exception | None = None
    for turn in range(max(turns) + 1):
        if turns[dist.get_rank()] == turn:
            try:
                made.append(make())
            except Exception as error:  # the others wait for this rank
                failed = error
        dist.barrier()
    if failed is not None:
        raise failed
    return made[0]


def turns_of(seats: Sequence[Seat], copy_bytes: int) -> list[int]:
    """The turn of each rank, from 0. Raises `ConfigError` where a host has no room for one copy."""
    room: dict[str, float] = {}
    for host, seen in seats:
        room[host] = min(seen, room.get(host, math.inf))
    at_once = {host: int(SHARE * left / copy_bytes) for host, left in room.items()}
    for host, count in at_once.items():
        if not count:
            raise ConfigError(
                f"every rank builds the whole model in fp32 in host memory, {format_bytes(copy_bytes)}, before it keeps its part, "
                f"but {host} has {format_bytes(room[host])} left, of which {SHARE:.0%} may be taken",
                remedy="use hosts with more memory, fewer virtual_stages, or a smaller model; a decoder's shape without code is built shard by shard",
                field="model",
            )
    met: dict[str, int] = {}
    turns = []
    for host, _ in seats:
        met[host] = met.get(host, 0) + 1
        turns.append((met[host] - 1) // at_once[host])
    return turns
