"""Fair use of the service: a queue for CPU-heavy requests, rate limits, and slots for event
streams.

The queue runs a few requests at once, and callers take turns. Each caller has its own queue, and a
free slot goes to the caller whose last turn is longest ago, so that a caller who sends hundreds of
requests only delays itself. It is used in one event loop's thread.

Rate limits are one token bucket per caller. Thread-safe.

An event stream takes a slot before it is opened and releases it when its connection ends. One
caller can only have part of the slots, and some are reserved for those who may control the study
that they follow: its owner, and admins.
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
        self, description: str, *, places: int, places_per_caller: int, waiting_per_caller: int
    ) -> None:
        """`description`: name of the requests in messages. `waiting_per_caller`: maximum number of
        requests of one caller that wait."""
        self._description, self._places, self._places_per_caller = (
            description,
            places,
            places_per_caller,
        )
        self._waiting_per_caller = waiting_per_caller
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """waiting requests by caller"""
        self._turn: dict[str, int] = {}
        """number of the last turn of each caller with requests"""
        self._turns = itertools.count(1)
        self._running: Counter[str] = Counter()
        self._threads: anyio.CapacityLimiter | None = None

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run the function when it is the caller's turn. Raises `RefusalError` (429) if too many of
        the caller's requests wait."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._places)
        waiting = self._waiting.setdefault(caller, deque())
        if len(waiting) >= self._waiting_per_caller:
            raise RefusalError(
                429,
                "busy",
                f"{len(waiting):,} {self._description} from this caller are already waiting",
                remedy="try again in 5 s",
                headers={"Retry-After": "5"},
            )
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._start_next()
        try:
            await turn
            return await anyio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._finish(caller, turn)

    def _finish(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Remove a request that has run, or that was cancelled while it waited."""
        waiting = self._waiting[caller]
        if turn.cancelled():
            waiting.remove(turn)
        else:
            self._running[caller] -= 1
        if not waiting and not self._running[caller]:
            del self._waiting[caller], self._running[caller]
            self._turn.pop(caller, None)
        self._start_next()

    def _start_next(self) -> None:
        """Give free slots to waiting callers in turn."""
        while self._running.total() < self._places:
            ready = {
                caller: turn
                for caller in self._waiting
                if (turn := self._next_request(caller)) is not None
            }
            if not ready:
                return
            caller = min(ready, key=lambda c: self._turn.get(c, 0))
            self._waiting[caller].remove(ready[caller])
            ready[caller].set_result(None)
            self._turn[caller] = next(self._turns)
            self._running[caller] += 1

    def _next_request(self, caller: str) -> asyncio.Future[None] | None:
        """Return the caller's first waiting request; None if the caller may not run another one."""
        if self._running[caller] >= self._places_per_caller:
            return None
        return next((turn for turn in self._waiting[caller] if not turn.cancelled()), None)


MAX_CALLERS = 10_000
"""maximum number of token buckets in memory; the least recently used is dropped first"""


class Limiter:
    """A token bucket per caller."""

    def __init__(self, rate: Rate, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._monotonic = rate, monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, caller: str, *, take: bool = True) -> float:
        """Return the seconds until the caller may send a request; 0 if it may now. Unless `take` is
        False, 0 also takes a token from the bucket."""
        now = self._monotonic()
        with self._lock:
            tokens, updated_s = self._buckets.pop(caller, (float(self._rate.burst), now))
            tokens = min(float(self._rate.burst), tokens + (now - updated_s) * self._rate.per_s)
            wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate.per_s
            self._buckets[caller] = (tokens - 1 if take and not wait else tokens, now)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        return wait


class StreamSlots:
    """The event-stream slots of one service. Use it only in the event loop's thread."""

    def __init__(self, options: ServiceOptions) -> None:
        self._max, self._reserved = options.max_streams, options.streams_reserved_for_owners
        self._per_caller = options.max_streams_per_caller
        self._taken: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Number of open streams."""
        return self._taken.total()

    def take(self, caller: str, *, is_owner: bool) -> None:
        """Take a slot. Raises `RefusalError` (429, 503)."""
        if self._taken[caller] >= self._per_caller:
            raise _busy(429, f"this caller already has {self._per_caller} open event streams")
        if self.count >= self._max - (0 if is_owner else self._reserved):
            raise _busy(503, f"{self.count:,} event streams are already open")
        self._taken[caller] += 1

    def release(self, caller: str) -> None:
        """Release one of the caller's slots."""
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


class SlottedStream(StreamingResponse):
    """A stream that releases its slot when its connection ends, even before the first line."""

    def __init__(
        self, lines: AsyncIterator[str], *, slots: StreamSlots, caller: str, media_type: str
    ) -> None:
        super().__init__(lines, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self._slots, self._caller = slots, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slots.release(self._caller)


def _busy(status: int, message: str) -> RefusalError:
    return RefusalError(
        status,
        "busy",
        message,
        remedy="close some streams, try again in 10 s, or read pages of events without a stream",
        headers={"Retry-After": "10"},
    )
