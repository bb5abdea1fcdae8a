"""Places for event streams: a stream takes one before it is opened and gives it back when its connection ends.

One caller may hold a part of them only, and some are kept for those who may act on the study that they follow: its owner, and admins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from autotune.service.error_responses import RefusalError
from autotune.service.options import ServiceOptions


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
            raise _busy(429, f"this caller has {self._per_caller} event streams open already")
        if self.count >= self._most - (0 if is_owner else self._kept):
            raise _busy(503, f"{self.count:,} event streams are open already")
        self._taken[caller] += 1

    def give_back(self, caller: str) -> None:
        """Gives one of the caller's places back."""
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


class PlacedStream(StreamingResponse):
    """A stream that gives its place back when its connection ends, even if it ends before the first line."""

    def __init__(self, lines: AsyncIterator[str], *, places: StreamPlaces, caller: str, media_type: str) -> None:
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
        remedy="close some, try again in 10 s, or read pages of events without a stream",
        headers={"Retry-After": "10"},
    )
