"""What all addresses of the API share: store, options, gate, counters, and the turns of work that takes the processor."""

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

HEAVY = 2
"""studies that are worked out at once (space, estimates, searcher): more would only slow each other"""
WAITING = 2000
"""requests that may wait for such a turn"""

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
    """One service. Kept in `app.state.service`."""

    store: ServiceStore
    options: ServiceOptions
    gate: Gate
    counters: Counters
    recent: ResponseCache
    """what was last told of studies"""
    supervisor: Supervisor | None = None
    """None where studies are run by another process on the same store"""
    closing: threading.Event = field(default_factory=threading.Event)
    """set when the service ends: streams end too"""
    streams: int = 0
    """open event streams"""
    examined: tuple[dict[str, Any] | None, float] = (None, 0.0)
    """the last examination of its health, and when it was"""
    _turns: anyio.CapacityLimiter | None = None
    _waiting: int = 0

    def changed(self) -> None:
        """A study was submitted or acted on: answers and the supervisor have to see it."""
        self.recent.doubt()
        if self.supervisor is not None:
            self.supervisor.wake()

    async def work(self, what: Callable[[], T]) -> T:
        """Runs what takes the processor in a thread, a few at a time. Raises `RefusalError` when too many wait."""
        if self._turns is None:
            self._turns = anyio.CapacityLimiter(HEAVY)
        if self._waiting >= WAITING:
            raise RefusalError(
                503, "busy", "too many requests wait already", remedy="try again", headers={"Retry-After": "5"}
            )
        self._waiting += 1
        try:
            return await anyio.to_thread.run_sync(what, limiter=self._turns)
        finally:
            self._waiting -= 1


def service_state_of(request: Request) -> ServiceState:
    """The service that the request came to."""
    found: ServiceState = request.app.state.service
    return found


async def service_state(request: Request) -> ServiceState:
    """The same for the framework, which would send a plain function to a thread."""
    return service_state_of(request)


def check_parameters(request: Request) -> None:
    """Refuses query parameters that the address does not have: a filter with a slip in its name would let everything through. Strangers
    are refused before that."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            near = nearest(name, known)
            raise SpecError(
                f"no parameter is called {name[:80]!r}",
                remedy=near or (f"there are {', '.join(known)}" if known else "this address takes none"),
                field=name[:80],
            )


async def reader(request: Request) -> Caller:
    """A caller who may read."""
    caller = await service_state_of(request).gate.admit(request, "read")
    check_parameters(request)
    return caller


async def submitter(request: Request) -> Caller:
    """A caller who may submit and act; with a cookie only when the form token comes in a header."""
    gate = service_state_of(request).gate
    caller = await gate.admit(request, "submit", changes=True)
    if caller.by_browser and caller.name != LOOPBACK:
        gate.check_form(caller, request.headers.get("x-csrf-token", ""))
    check_parameters(request)
    return caller


async def planner(request: Request) -> Caller:
    """A caller who may read, for what takes the processor."""
    caller = await service_state_of(request).gate.admit(request, "read", changes=True)
    check_parameters(request)
    return caller


TheService = Annotated[ServiceState, Depends(service_state)]
Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
Planner = Annotated[Caller, Depends(planner)]

Plain = dict[str, Any]
