"""State that all routes share: store, options, access control, counters, response cache, and the limiter for CPU-heavy requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Path, Query, Request

from autotune.errors import SpecError
from autotune.ports import ServiceStore
from autotune.service.access import LOOPBACK, Caller, Gate
from autotune.service.counters import Counters
from autotune.service.error_responses import RefusalError
from autotune.service.options import ServiceOptions
from autotune.service.response_cache import ResponseCache
from autotune.service.supervisor import Supervisor
from autotune.spec.checks import nearest

T = TypeVar("T")

MAX_HEAVY = 2
"""CPU-heavy requests (enumeration, estimates, search) that run at once; more would only slow each other down"""
MAX_WAITING = 2000
"""CPU-heavy requests that may run or wait"""

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$"
StudyId = Annotated[
    str,
    Path(pattern=NAME_PATTERN, description="id of a study, the start of the id, or its name", examples=["kfm4a2b9xq"]),
]
Word = Annotated[str, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=1 << 40)]


@dataclass(kw_only=True)
class ServiceState:
    """The state of one service, stored in `app.state.service`."""

    store: ServiceStore
    options: ServiceOptions
    gate: Gate
    counters: Counters
    response_cache: ResponseCache
    supervisor: Supervisor | None = None
    """None where another process runs the studies of the store"""
    closing: threading.Event = field(default_factory=threading.Event)
    """set when the service shuts down: open event streams then end"""
    streams: int = 0
    """number of open event streams"""
    last_health: tuple[dict[str, Any] | None, float] = (None, 0.0)
    """the last health document, and the monotonic time at which it was made"""
    _heavy: anyio.CapacityLimiter | None = None
    _waiting: int = 0

    def changed(self) -> None:
        """A study was submitted or acted on: invalidates cached responses and wakes the supervisor."""
        self.response_cache.invalidate()
        if self.supervisor is not None:
            self.supervisor.wake()

    async def work(self, what: Callable[[], T]) -> T:
        """Runs a CPU-heavy function in a thread, a few at a time. Raises `RefusalError` when too many wait."""
        if self._heavy is None:
            self._heavy = anyio.CapacityLimiter(MAX_HEAVY)
        if self._waiting >= MAX_WAITING:
            raise RefusalError(
                503,
                "busy",
                f"{MAX_WAITING:,} requests for planning and search wait already",
                remedy="try again in 5 s",
                headers={"Retry-After": "5"},
            )
        self._waiting += 1
        try:
            return await anyio.to_thread.run_sync(what, limiter=self._heavy)
        finally:
            self._waiting -= 1


def service_state_of(request: Request) -> ServiceState:
    """The state of the service that received the request."""
    found: ServiceState = request.app.state.service
    return found


async def service_state(request: Request) -> ServiceState:
    """`service_state_of` as a dependency: FastAPI would run a plain function in a thread."""
    return service_state_of(request)


def check_parameters(request: Request) -> None:
    """Raises `SpecError` for a query parameter that the route does not have: a misspelt filter would otherwise match everything.

    Called after authentication, so that strangers learn no parameter names.
    """
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            near = nearest(name, known)
            raise SpecError(
                f"this address has no parameter {name[:80]!r}",
                remedy=near or (f"it has {', '.join(known)}" if known else "it takes none"),
                field=name[:80],
            )


async def reader(request: Request) -> Caller:
    """Admits a caller with scope read."""
    caller = await service_state_of(request).gate.admit(request, "read")
    check_parameters(request)
    return caller


async def submitter(request: Request) -> Caller:
    """Admits a caller with scope submit. A caller with a cookie must also send the form token in the header X-CSRF-Token."""
    gate = service_state_of(request).gate
    caller = await gate.admit(request, "submit", changes=True)
    if caller.by_browser and caller.name != LOOPBACK:
        gate.check_form(caller, request.headers.get("x-csrf-token", ""))
    check_parameters(request)
    return caller


async def planner(request: Request) -> Caller:
    """Admits a caller with scope read, under the rate limit of writes, for CPU-heavy requests."""
    caller = await service_state_of(request).gate.admit(request, "read", changes=True)
    check_parameters(request)
    return caller


TheService = Annotated[ServiceState, Depends(service_state)]
Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
Planner = Annotated[Caller, Depends(planner)]

Plain = dict[str, Any]
