"""What was refused goes into the audit: who asked from where for what, and why not. Middleware around everything else.

Strangers decide how much of it there is, so it is rationed: `KEPT` lines at once and one in 20 s after that, under a megabyte a day. A line says how
many before it were left out. Never in it: tokens, bodies, queries, other headers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.errors import StoreError
from autotune.ports import AuditLog
from autotune.service.options import Rate
from autotune.service.rates import Limiter

log = logging.getLogger("autotune.service")

AUDITED = {401: "unauthorized", 403: "forbidden", 413: "too_large", 421: "host", 429: "rate_limited"}
KEPT = Rate(per_s=0.05, burst=100)
LONGEST_PATH = 200
STRANGER = "stranger"


class Refusals:
    """Middleware."""

    def __init__(self, app: ASGIApp, *, store: AuditLog, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.app, self._store = app, store
        self._ration = Limiter(KEPT, monotonic=monotonic)
        self._untold = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on, and notes the answer when it is a refusal."""
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self.app(scope, receive, noting)
        if status in AUDITED:
            await self._note(scope, status)

    async def _note(self, scope: Scope, status: int) -> None:
        if self._ration.wait_s("all"):
            self._untold += 1
            return
        data = {
            "status": status,
            "reason": AUDITED[status],
            "method": scope["method"][:20],
            "path": scope["path"][:LONGEST_PATH],
            "address": (scope.get("client") or ("",))[0],
            "untold": self._untold,
        }
        actor = str(scope.get("state", {}).get("caller", STRANGER))
        try:
            await run_in_threadpool(self._store.record_audit, actor, "refused", "", data)
        except StoreError as error:  # the answer has gone out already; the audit waits for better times
            log.warning("a refusal could not be noted: %s", error)
            self._untold += 1
            return
        self._untold = 0
