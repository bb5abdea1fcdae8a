"""Refused requests in the audit log: who sent which request from where, and why it was refused. The
outermost middleware.

Strangers can cause any number of refusals, so a rate limit applies: `AUDIT_RATE` allows 100 lines
at once and then one every 20 s, less than a megabyte a day. Each line counts the refusals that were
left out before it. Tokens, bodies, queries and other headers are never written.
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
AUDIT_RATE = Rate(per_s=0.05, burst=100)
LONGEST_PATH = 200
STRANGER = "stranger"


class Refusals:
    """Middleware that writes refusals to the audit log."""

    def __init__(
        self, app: ASGIApp, *, store: AuditLog, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.app, self._store = app, store
        self._limiter = Limiter(AUDIT_RATE, monotonic=monotonic)
        self._omitted = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, and writes a line when the response is a refusal."""
        status = 0

        async def watching(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self.app(scope, receive, watching)
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
            "path": scope["path"][:LONGEST_PATH],
            "address": (scope.get("client") or ("",))[0],
            "untold": self._omitted,
        }
        caller: Caller | None = scope.get("state", {}).get("caller")
        actor = caller.name if caller else STRANGER
        try:
            await run_in_threadpool(self._store.record_audit, actor, "refused", "", data)
        except StoreError as error:
            # the response is sent already; the next line counts this refusal
            log.warning("a rejected request could not be written to the audit log: %s", error)
            self._omitted += 1
            return
        self._omitted = 0
