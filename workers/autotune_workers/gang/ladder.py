"""The escalation with which an attempt is ended: orders to its ranks, rung by rung, until every
rank is idle again or gone.

    where       asks the ranks of a hung trial for their stacks, as evidence
    stop        asks ranks to end after the current step
    clean-up    waits for ranks that end by themselves
    abort       aborts collectives
    terminate   SIGTERM
    kill        SIGKILL
    give up     the process cannot be killed; it is stuck in the kernel

Before the ranks run, an attempt ends with `leave` (starting ranks continue to start) or `give back`
(ranks that have not started are replaced).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autotune_workers.gang.members import Member
from autotune_workers.gang.wire import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits, in seconds."""

    silent_s: float = 5.0
    """a rank without a heartbeat (one per second) for this long counts as frozen"""
    stop_s: float = 5.0
    """for a cancelled trial to finish its step"""
    abort_s: float = 3.5
    """for ranks to leave their collectives and clean up"""
    terminate_s: float = 0.5
    """between SIGTERM and SIGKILL"""
    evidence_s: float = 0.5
    """for the ranks of a hung trial to report their stacks"""
    gone_s: float = 30.0
    """for a killed process to be gone"""
    placement_s: float = 3600.0
    """for a gang to be placed on a cluster that others use"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What is sent to the ranks that are still busy."""

    commands: tuple[str, ...] = ()
    """messages"""
    signal: str = ""
    """TERM or KILL"""
    then: str = "give up"
    """the rung that follows if ranks are still busy when the time is over"""


RUNGS = {
    "where": Rung(commands=("where",), then="abort"),
    "stop": Rung(commands=("stop",), then="abort"),
    "clean-up": Rung(then="abort"),
    "abort": Rung(commands=("stop", "abort"), then="terminate"),
    "terminate": Rung(signal="TERM", then="kill"),
    "kill": Rung(signal="KILL"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A message or a signal (TERM or KILL) to a rank."""

    rank: int
    message: Message | None = None
    signal: str = ""


class Ladder:
    """The current rung of an attempt's end, and all orders to its ranks."""

    def __init__(
        self, members: list[Member], *, run: int, patience: Patience, clean_up_s: float
    ) -> None:
        """`run`: number of the launch, part of every message; `clean_up_s`: time limit of the rung
        `clean-up`."""
        self._members, self._run = members, run
        self._lasts_s = {
            "where": patience.evidence_s,
            "stop": patience.stop_s,
            "clean-up": clean_up_s,
            "abort": patience.abort_s,
            "terminate": patience.terminate_s,
            "kill": patience.gone_s,
        }
        self._orders: list[Order] = []
        self.rung = ""
        """the current rung; empty before the end has begun"""
        self.until_s = math.inf
        """when the time of this rung is over"""
        self.has_aborted = False
        """whether ranks were ordered to abort their collectives"""

    def take_orders(self) -> list[Order]:
        """Orders since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def tell(self, to: int, /, **message: Any) -> None:
        """Sends a message to a rank, unless it is gone."""
        if not self._members[to].gone:
            self._orders.append(Order(rank=to, message={**message, "run": self._run}))

    def signal(self, rank: int, name: str) -> None:
        """Sends a rank a signal, TERM or KILL."""
        self._members[rank].signalled = True
        self._orders.append(Order(rank=rank, signal=name))

    def due(self, now_s: float) -> str:
        """The rung to take now; empty while the current one has time left."""
        return RUNGS[self.rung].then if now_s >= self.until_s else ""

    def step_on(self, rung: str, now_s: float) -> list[int]:
        """Takes a rung: sends its orders to the ranks that are still busy. Returns the ranks that
        it gives up."""
        if rung in ("leave", "give back"):
            for member in self._members:
                member.idle = not member.gone and (member.ready or rung == "leave")
        self.rung = "terminate" if rung == "give back" else rung
        busy = [r for r, m in enumerate(self._members) if not m.over]
        if self.rung == "give up":
            self.until_s = math.inf
            for rank in busy:
                self._members[rank].gone = True
            return busy
        if (orders := RUNGS.get(self.rung)) is not None:
            self.until_s = now_s + self._lasts_s[self.rung]
            self.has_aborted |= self.rung == "abort"
            for rank in busy:
                for command in orders.commands:
                    self.tell(rank, command=command)
                if orders.signal:
                    self.signal(rank, orders.signal)
        return []
