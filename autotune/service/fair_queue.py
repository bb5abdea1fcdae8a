"""A queue for CPU-heavy requests: a few run at a time, callers take turns, and no caller may fill it.

Each caller has a line of its own. A free place goes to the caller who has waited longest since its last turn, so that a caller who sends hundreds of
requests delays itself only. It belongs to one event loop and is used from its thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from autotune.service.error_responses import RefusalError

T = TypeVar("T")


class FairQueue:
    """Runs functions in threads, at most `places` at once."""

    def __init__(self, what: str, *, places: int, places_per_caller: int, waiting_per_caller: int) -> None:
        """`what`: the requests in words, for messages. `waiting_per_caller`: most requests in the line of one caller."""
        self._what, self._places, self._places_per_caller = what, places, places_per_caller
        self._waiting_per_caller = waiting_per_caller
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """the lines, by caller"""
        self._turn: dict[str, int] = {}
        """number of each caller's last turn, as long as the caller has requests here"""
        self._turns = itertools.count(1)
        self._running: Counter[str] = Counter()
        self._threads: anyio.CapacityLimiter | None = None

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Runs the function when it is the caller's turn. Raises `RefusalError` (429) when too many of the caller's requests wait."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._places)
        line = self._waiting.setdefault(caller, deque())
        if len(line) >= self._waiting_per_caller:
            raise RefusalError(
                429,
                "busy",
                f"{len(line):,} {self._what} of this caller wait already",
                remedy="try again in 5 s",
                headers={"Retry-After": "5"},
            )
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._fill()
        try:
            await turn
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._leave(caller, turn)

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        """The request has run, or was given up while it waited: its turn is then cancelled."""
        line = self._waiting[caller]
        if turn.cancelled():
            line.remove(turn)
        else:
            self._running[caller] -= 1
        if not line and not self._running[caller]:
            del self._waiting[caller], self._running[caller]
            self._turn.pop(caller, None)
        self._fill()

    def _fill(self) -> None:
        """Gives the free places to the callers in turn."""
        while self._running.total() < self._places:
            ready = {caller: turn for caller in self._waiting if (turn := self._next(caller)) is not None}
            if not ready:
                return
            caller = min(ready, key=lambda c: self._turn.get(c, 0))
            self._waiting[caller].remove(ready[caller])
            ready[caller].set_result(None)
            self._turn[caller] = next(self._turns)
            self._running[caller] += 1

    def _next(self, caller: str) -> asyncio.Future[None] | None:
        """The caller's first request that still waits; None where the caller may not run another."""
        if self._running[caller] >= self._places_per_caller:
            return None
        return next((turn for turn in self._waiting[caller] if not turn.cancelled()), None)
