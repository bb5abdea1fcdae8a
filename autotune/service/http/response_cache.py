"""A response cache keyed by study revision: many clients poll the same few studies, and most polls
find nothing new.

    fresh response (younger than `FRESH_S`)    sent again without a query
    older response                             the study's revision is read (two indexed rows); the response is recomputed only if it changed
    `invalidate`                               called after each change through this service: older responses are then checked first

A change by another process is therefore visible after at most `FRESH_S`. Requests that arrive while
a response is being computed wait for that computation. Responses have an ETag (RFC 9110, section
8.8.3): a client that already has the response gets 304 Not Modified.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune.ports import Revision, StudyReader

FRESH_S = 0.1
"""time for which a response is sent again without a query, seconds"""
MAX_BYTES = 64 << 20
"""total size of the cached bodies, bytes; the one whose last check is longest ago is dropped
first"""
_HEADERS = {"Cache-Control": "private, no-cache"}

CacheKey = tuple[str, str]
"""(kind of response, study as given in the request)"""


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A response body, and the study's revision from which it was computed."""

    revision: Revision
    body: bytes
    etag: str

    def response(self, if_none_match: str | None) -> Response:
        """Return the response to a request with this If-None-Match header; 304 if the client
        already has this body."""
        headers = {**_HEADERS, "ETag": self.etag}
        tags = if_none_match.split(",") if if_none_match else []
        if any(tag.strip().removeprefix("W/") in (self.etag, "*") for tag in tags):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type="application/json", headers=headers)


@dataclass(frozen=True, slots=True)
class _Computation:
    """A response that is being checked or computed."""

    started_s: float
    task: asyncio.Task[CachedResponse]


class ResponseCache:
    """The cache. Use it in one event loop; only `invalidate` may be called from other threads."""

    def __init__(
        self, store: StudyReader, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._monotonic = store, monotonic
        self._entries: OrderedDict[CacheKey, tuple[CachedResponse, float]] = OrderedDict()
        self._computations: dict[CacheKey, _Computation] = {}
        self._bytes = 0
        self._invalidated_s = float("-inf")

    async def get(self, study: str, kind: str, make: Callable[[str], bytes]) -> CachedResponse:
        """Return the response of this kind for a study (id, prefix of the id, or name). `make(id)`
        computes its body. Raises the store's errors."""
        key = (kind, study)
        cached, checked_s = self._entries.get(key, (None, float("-inf")))
        if (
            cached is not None
            and checked_s > self._invalidated_s
            and self._monotonic() - checked_s < FRESH_S
        ):
            return cached
        computation = self._computations.get(key)
        if computation is None or computation.started_s <= self._invalidated_s:
            computation = _Computation(
                self._monotonic(), asyncio.create_task(self._refresh(key, cached, make))
            )
            self._computations[key] = computation
            computation.task.add_done_callback(_retrieve_error)
        # shielded, so that a client that disconnects does not cancel it for other clients
        return await asyncio.shield(computation.task)

    def invalidate(self) -> None:
        """Check each cached response against its study's revision before it is sent again, because
        a study was changed."""
        self._invalidated_s = self._monotonic()

    async def _refresh(
        self, key: CacheKey, cached: CachedResponse | None, make: Callable[[str], bytes]
    ) -> CachedResponse:
        started_s = self._monotonic()
        try:
            response = await run_in_threadpool(self._compute, key[1], cached, make)
            self._keep(key, response, started_s)
            return response
        finally:
            computation = self._computations.get(key)
            if computation is not None and computation.task is asyncio.current_task():
                del self._computations[key]

    def _compute(
        self, study: str, cached: CachedResponse | None, make: Callable[[str], bytes]
    ) -> CachedResponse:
        # read the revision before the body is made, so that a body is never considered newer than it is
        revision = self._store.revision(study)
        if cached is not None and cached.revision == revision:
            return cached
        body = make(revision.id)
        return CachedResponse(
            revision, body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        )

    def _keep(self, key: CacheKey, response: CachedResponse, started_s: float) -> None:
        replaced, _ = self._entries.pop(key, (None, 0.0))
        self._bytes += len(response.body) - (len(replaced.body) if replaced else 0)
        self._entries[key] = (response, started_s)
        while self._bytes > MAX_BYTES:
            _, (oldest, _) = self._entries.popitem(last=False)
            self._bytes -= len(oldest.body)


def _retrieve_error(task: asyncio.Task[CachedResponse]) -> None:
    """Mark the task's error as retrieved, because all clients that waited for it may be gone."""
    if not task.cancelled():
        task.exception()
