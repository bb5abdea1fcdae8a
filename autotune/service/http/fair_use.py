"""A queue for CPU-heavy requests: a few run at a time, callers take turns, and no caller may fill
it.

Each caller has a line of its own. A free place goes to the caller who has waited longest since its
last turn, so that a caller who sends hundreds of requests delays itself only. It belongs to one
event loop and is used from its thread.

Rate limits: one token bucket per caller. Thread-safe.

Places for event streams: a stream takes one before it is opened and gives it back when its
connection ends.

One caller may hold a part of them only, and some are kept for those who may act on the study that
they follow: its owner, and admins.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from autotune.service.http.error_responses import RefusalError
from autotune.service.options import Rate, ServiceOptions

T = TypeVar("T")


class FairQueue:
    """Runs functions in threads, at most `places` at once."""

    def __init__(
        self, what: str, *, places: int, places_per_caller: int, waiting_per_caller: int
    ) -> None:
        """`what`: the requests in words, for messages. `waiting_per_caller`: most requests in the
        line of one caller."""
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
        """Runs the function when it is the caller's turn. Raises `RefusalError` (429) when too many
        of the caller's requests wait."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._places)
        line = self._waiting.setdefault(caller, deque())
        if len(line) >= self._waiting_per_caller:
            raise RefusalError(
                429,
                "busy",
                f"{len(line):,} {self._what} from this caller are already waiting",
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
            ready = {
                caller: turn for caller in self._waiting if (turn := self._next(caller)) is not None
            }
            if not ready:
                return
            caller = min(ready, key=lambda c: self._turn.get(c, 0))
            self._waiting[caller].remove(ready[caller])
            ready[caller].set_result(None)
            self._turn[caller] = next(self._turns)
            self._running[caller] += 1

    def _next(self, caller: str) -> asyncio.Future[None] | None:
        """The caller's first request that still waits; None where the caller may not run
        another."""
        if self._running[caller] >= self._places_per_caller:
            return None
        return next((turn for turn in self._waiting[caller] if not turn.cancelled()), None)


MOST_CALLERS = 10_000
"""most buckets in memory; the one that was used longest ago is dropped first"""


class Limiter:
    """A token bucket for each caller."""

    def __init__(self, rate: Rate, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._monotonic = rate, monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, caller: str, *, take: bool = True) -> float:
        """Seconds until the caller may send a request, 0 if it may now. Unless `take` is False, 0
        also takes one token from the bucket."""
        now = self._monotonic()
        with self._lock:
            left, at = self._buckets.pop(caller, (float(self._rate.burst), now))
            left = min(float(self._rate.burst), left + (now - at) * self._rate.per_s)
            wait = 0.0 if left >= 1 else (1 - left) / self._rate.per_s
            self._buckets[caller] = (left - 1 if take and not wait else left, now)
            if len(self._buckets) > MOST_CALLERS:
                self._buckets.popitem(last=False)
        return wait


class StreamPlaces:
    """The places of one service. Used from the event loop's thread only."""

    def __init__(self, options: ServiceOptions) -> None:
        self._most, self._kept = options.max_streams, options.streams_kept_for_owners
        self._per_caller = options.max_streams_per_caller
        self._taken: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Open streams."""
        return self._taken.total()

    def take(self, caller: str, *, is_owner: bool) -> None:
        """Takes a place. Raises `RefusalError` (429, 503)."""
        if self._taken[caller] >= self._per_caller:
            raise _busy(429, f"this caller already has {self._per_caller} open event streams")
        if self.count >= self._most - (0 if is_owner else self._kept):
            raise _busy(503, f"{self.count:,} event streams are already open")
        self._taken[caller] += 1

    def give_back(self, caller: str) -> None:
        """Gives one of the caller's places back."""
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


class PlacedStream(StreamingResponse):
    """A stream that gives its place back when its connection ends, even if it ends before the first
    line."""

    def __init__(
        self, lines: AsyncIterator[str], *, places: StreamPlaces, caller: str, media_type: str
    ) -> None:
        super().__init__(lines, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self._places, self._caller = places, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.give_back(self._caller)


def _busy(status: int, message: str) -> RefusalError:
    return RefusalError(
        status,
        "busy",
        message,
        remedy="close some streams, try again in 10 s, or read pages of events without a stream",
        headers={"Retry-After": "10"},
    )
