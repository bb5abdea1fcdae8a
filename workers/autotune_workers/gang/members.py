"""What is known of the ranks of a gang, and which of them is to blame when it hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    stack: tuple[str, ...] = ()
    """where it is, when asked"""

    @property
    def over(self) -> bool:
        """Whether nothing more is expected of it in this attempt."""
        return self.idle or self.gone


def culprit(members: Sequence[Member], now_s: float, silent_s: float) -> tuple[int, str, bool] | None:
    """The rank that holds the others up, how, and whether it is silent: one without a heartbeat for `silent_s`, else one that is not in a
    collective while others wait in one, else the furthest behind. None when all are over.
    """
    busy = [r for r, m in enumerate(members) if not m.over]
    silent = [r for r in busy if now_s - members[r].heard_s >= silent_s]
    if silent:
        unheard_s = now_s - members[silent[0]].heard_s
        return silent[0], f"sends no heartbeat for {unheard_s:.1f} s: stopped or frozen", True
    waiting = [r for r, m in enumerate(members) if any(_is_collective(line) for line in m.stack)]
    apart = [r for r in busy if members[r].stack and r not in waiting]
    if apart and waiting:
        return apart[0], f"keeps {len(waiting)} other(s) waiting in a collective", False
    if busy:
        return min(busy, key=lambda r: members[r].step or 0), "is the furthest behind", False
    return None


def _is_collective(frame: str) -> bool:
    return "torch/distributed/" in frame or "_functional_collectives" in frame
