"""What is known of the ranks of a gang, and which of them is to blame when it hangs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.spec.texts.as_text import format_duration

_WAITING_FILES = re.compile(
    r"torch/distributed/(distributed_c10d|c10d_logger|_functional_collectives)\.py|torch/cuda/"
)
_WAITING_CALLS = re.compile(r"\.wait\(|wait_tensor\(|synchronize\(|\.item\(\)|\.tolist\(\)")


@dataclass(slots=True)
class Member:
    """What is known of one rank."""

    ready: bool = False
    done: bool = False
    """trained to the end, or failed"""
    idle: bool = False
    """has cleaned up"""
    gone: bool = False
    """its process has ended"""
    signalled: bool = False
    """was told to end by a signal"""
    leaks: bool = False
    """keeps memory that it should have given back"""
    heard_s: float = 0.0
    """when its last message came, s"""
    step: int | None = None
    phase: str = "start"
    micro_batch: int = 0
    """micro-batches that it has begun in this trial"""
    collectives: Mapping[str, int] = field(default_factory=dict)
    """collectives that it has begun, by process group"""
    stack: tuple[str, ...] = ()
    """where it is, when asked"""

    def hear_progress(self, message: Mapping[str, Any]) -> None:
        """Takes what a message tells of how far it has come."""
        self.micro_batch = message.get("micro_batch", self.micro_batch)
        self.collectives = message.get("collectives", self.collectives)

    @property
    def over(self) -> bool:
        """Whether nothing more is expected of it in this attempt."""
        return self.idle or self.gone


def culprit(
    members: Sequence[Member], now_s: float, silent_s: float
) -> tuple[int, str, bool] | None:
    """The rank that holds the others up, how, and whether it is silent. None when all are over.

    The first that is found: a rank without a heartbeat for `silent_s`; one that has not come to a
    collective which others of its group have begun, and waits for nobody itself; one that computes
    while others wait; the one that has begun the fewest micro-batches.
    """
    busy = [r for r, m in enumerate(members) if not m.over]
    silent = [r for r in busy if now_s - members[r].heard_s >= silent_s]
    if silent:
        unheard_s = now_s - members[silent[0]].heard_s
        return (
            silent[0],
            f"sent no heartbeat for {format_duration(unheard_s)}, so it is stopped or frozen",
            True,
        )
    if not busy:
        return None
    waiting = {r for r in busy if _waits(members[r])}
    if awaited := behind({r: members[r].collectives for r in busy}):
        rank = min(awaited, key=lambda r: (r in waiting, members[r].micro_batch, r))
        return rank, f"has not reached a collective where {awaited[rank]} other(s) wait", False
    computing = [r for r in busy if members[r].stack and r not in waiting]
    if computing and waiting:
        rank = min(computing, key=lambda r: members[r].micro_batch)
        return rank, f"keeps {len(waiting)} other(s) waiting", False
    rank = min(busy, key=lambda r: (members[r].step or 0, members[r].micro_batch))
    return rank, "is furthest behind", False


def behind(collectives: Mapping[int, Mapping[str, int]]) -> dict[int, int]:
    """The ranks that have not come to a collective which others of a group have begun, and wait for
    nobody themselves; how many wait.

    `collectives`: that each rank has begun, by process group.
    """
    least, most = dict[str, int](), dict[str, int]()
    for counts in collectives.values():
        for group, begun in counts.items():
            least[group] = min(begun, least.get(group, begun))
            most[group] = max(begun, most.get(group, begun))
    found = {}
    for rank, mine in collectives.items():
        awaited_in = {group: begun for group, begun in mine.items() if begun < most[group]}
        if awaited_in and all(begun == least[group] for group, begun in mine.items()):
            found[rank] = sum(
                any(its.get(g, n) > n for g, n in awaited_in.items())
                for its in collectives.values()
            )
    return found


def waits(file: str, line: str) -> bool:
    """Whether a thread whose innermost frame is this line of source waits for a peer or for its
    device, rather than computes."""
    return bool(_WAITING_FILES.search(file) or _WAITING_CALLS.search(line))


def _waits(member: Member) -> bool:
    if not member.stack:
        return False
    file, _, line = member.stack[-1].partition("\n")
    return waits(file, line)
