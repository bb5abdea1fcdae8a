"""The state of the ranks of a gang, and which rank is to blame when the gang hangs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from autotune.spec.texts.as_text import format_duration, number_of

_WAITING_FILES = re.compile(
    r"torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives)\.py|torch/cuda/"
)
_WAITING_CALLS = re.compile(r"\.wait\(|wait_tensor\(|synchronize\(|\.item\(\)|\.tolist\(\)")


@dataclass(slots=True)
class Member:
    """The state of one rank, as far as its runner knows."""

    ready: bool = False
    done: bool = False
    """has trained to the end, or failed"""
    idle: bool = False
    """has cleaned up after the trial"""
    gone: bool = False
    """its process has ended"""
    signalled: bool = False
    """the runner sent it a signal"""
    leaks: bool = False
    """did not free its memory after the trial"""
    heard_s: float = 0.0
    """time of its last message, seconds on the runner's clock"""
    step: int | None = None
    phase: str = "start"
    micro_batch: int = 0
    """number of micro-batches begun in this trial"""
    collectives: Mapping[str, int] = field(default_factory=dict)
    """number of collectives begun, by process group"""
    stack: tuple[str, ...] = ()
    """its stack, innermost frame last; empty if it was not asked"""

    def hear_progress(self, message: Mapping[str, Any]) -> None:
        """Copies micro-batch and collective counts from a message."""
        self.micro_batch = message.get("micro_batch", self.micro_batch)
        self.collectives = message.get("collectives", self.collectives)

    @property
    def over(self) -> bool:
        """Whether the rank is idle or gone, so that the attempt need not wait for it."""
        return self.idle or self.gone


@final
class Culprit(NamedTuple):
    """The rank that blocks the others."""

    rank: int
    how: str
    """a verb phrase for messages"""
    is_silent: bool
    """whether it sends no heartbeats"""


def culprit(members: Sequence[Member], now_s: float, silent_s: float) -> Culprit | None:
    """The rank that blocks the others; None if all are over.

    The first rank that meets one of these conditions, in this order: no heartbeat for `silent_s`;
    has not reached a collective that others of its group have begun, and waits for no one itself;
    computes while others wait; has begun the fewest micro-batches.
    """
    busy = [r for r, m in enumerate(members) if not m.over]
    silent = [r for r in busy if now_s - members[r].heard_s >= silent_s]
    if silent:
        silence_s = now_s - members[silent[0]].heard_s
        how = f"sent no heartbeat for {format_duration(silence_s)}, so it is stopped or frozen"
        return Culprit(silent[0], how, True)
    if not busy:
        return None
    waiting = {r for r in busy if _waits(members[r])}
    if awaited := behind({r: members[r].collectives for r in busy}):
        rank = min(awaited, key=lambda r: (r in waiting, members[r].micro_batch, r))
        how = f"has not reached a collective which is awaited by {number_of(awaited[rank], 'other rank')}"
        return Culprit(rank, how, False)
    computing = [r for r in busy if members[r].stack and r not in waiting]
    if computing and waiting:
        rank = min(computing, key=lambda r: members[r].micro_batch)
        return Culprit(rank, f"is awaited by {number_of(len(waiting), 'other rank')}", False)
    rank = min(busy, key=lambda r: (members[r].step or 0, members[r].micro_batch))
    return Culprit(rank, "is furthest behind", False)


def behind(collectives: Mapping[int, Mapping[str, int]]) -> dict[int, int]:
    """The ranks that others wait for: those that have not reached a collective that others of the
    group have begun, and wait in no group themselves; with the number of waiting ranks.

    `collectives`: number of collectives that each rank has begun, by process group.
    """
    least, most = dict[str, int](), dict[str, int]()
    for counts in collectives.values():
        for group, begun in counts.items():
            least[group] = min(begun, least.get(group, begun))
            most[group] = max(begun, most.get(group, begun))
    waiting_for = {}
    for rank, mine in collectives.items():
        awaited_in = {group: begun for group, begun in mine.items() if begun < most[group]}
        if awaited_in and all(begun == least[group] for group, begun in mine.items()):
            waiting_for[rank] = sum(
                any(counts.get(g, n) > n for g, n in awaited_in.items())
                for counts in collectives.values()
            )
    return waiting_for


def waits(file: str, line: str) -> bool:
    """Whether a thread whose innermost frame is this source line waits for a peer or for its
    device, instead of computing."""
    return bool(_WAITING_FILES.search(file) or _WAITING_CALLS.search(line))


def _waits(member: Member) -> bool:
    if not member.stack:
        return False
    file, _, line = member.stack[-1].partition("\n")
    return waits(file, line)
