"""Rejected requests in the audit log: who sent which request from where, and why it was rejected.
The outermost middleware.

Strangers can cause any number of rejections, so a rate limit applies: `AUDIT_RATE` allows 100 lines
at once and then one every 20 s, less than a megabyte a day. Each line has the number of rejections
omitted before it. Tokens, bodies, queries and other headers are never recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.errors import StoreError
from autotune.ports import AuditLog
from autotune.service.http.access import Caller
from autotune.service.http.fair_use import Limiter
from autotune.service.options import Rate

log = logging.getLogger("autotune.service")

AUDITED = {
    401: "unauthorized",
    403: "forbidden",
    413: "too_large",
    421: "host",
    429: "rate_limited",
}
"""reasons to record, by HTTP status"""
AUDIT_RATE = Rate(per_s=0.05, burst=100)
MAX_PATH = 200
"""longest recorded path, characters"""
STRANGER = "stranger"
"""actor of requests without a valid token"""


class Refusals:
    """Middleware that records rejected requests in the audit log."""

    def __init__(
        self, app: ASGIApp, *, store: AuditLog, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.app, self._store = app, store
        self._limiter = Limiter(AUDIT_RATE, monotonic=monotonic)
        self._omitted = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, and record it if the response is a rejection."""
        status = 0

        async def send_and_keep_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self.app(scope, receive, send_and_keep_status)
        if status in AUDITED:
            await self._record(scope, status)

    async def _record(self, scope: Scope, status: int) -> None:
        if self._limiter.wait_s("all"):
            self._omitted += 1
            return
        data = {
            "status": status,
            "reason": AUDITED[status],
            "method": scope["method"][:20],
            "path": scope["path"][:MAX_PATH],
            "address": (scope.get("client") or ("",))[0],
            "untold": self._omitted,
        }
        caller: Caller | None = scope.get("state", {}).get("caller")
        actor = caller.name if caller else STRANGER
        try:
            await run_in_threadpool(self._store.record_audit, actor, "refused", "", data)
        except StoreError as error:
            # the response is already sent; the next line counts this rejection
            log.warning("a rejected request could not be written to the audit log: %s", error)
            self._omitted += 1
            return
        self._omitted = 0
