"""What all addresses of the API share: store, options, gate, counters, and the turns of work that takes the processor."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Path, Query, Request

from autotune.service.access import LOOPBACK, Caller, Gate
from autotune.service.counters import Counters
from autotune.service.envelope import RefusalError
from autotune.service.options import ServiceOptions
from autotune.service.supervisor import Supervisor
from autotune.store.sql import SqlStore

T = TypeVar("T")

HEAVY = 2
"""studies that are worked out at once (space, estimates, searcher): more would only slow each other"""
MOST_RECENT = 256
"""studies of which the last answer is kept"""
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


class RecentAnswers:
    """What was last told of each study, for as long as nothing about it has changed: many watch the same few. Threads share it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[datetime, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, study: str, updated_at: datetime) -> bytes | None:
        """The answer of that moment of the study."""
        with self._lock:
            at, answer = self._kept.get(study, (None, None))
        return answer if at == updated_at else None

    def put(self, study: str, updated_at: datetime, answer: bytes) -> None:
        """Keeps the answer in place of the one before. `updated_at` is of before the answer was made, so that it is never taken for newer."""
        with self._lock:
            self._kept[study] = (updated_at, answer)
            self._kept.move_to_end(study)
            if len(self._kept) > MOST_RECENT:
                self._kept.popitem(last=False)


@dataclass(kw_only=True)
class House:
    """One service. Kept in `app.state.house`."""

    store: SqlStore
    options: ServiceOptions
    gate: Gate
    counters: Counters
    supervisor: Supervisor | None = None
    """None where studies are run by another process on the same store"""
    closing: threading.Event = field(default_factory=threading.Event)
    """set when the service ends: streams end too"""
    streams: int = 0
    """open event streams"""
    examined: tuple[dict[str, Any] | None, float] = (None, 0.0)
    """the last examination of its health, and when it was"""
    recent: RecentAnswers = field(default_factory=RecentAnswers)
    """what was last told of studies"""
    _turns: anyio.CapacityLimiter | None = None
    _waiting: int = 0

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


def house_of(request: Request) -> House:
    """The service that the request came to."""
    found: House = request.app.state.house
    return found


async def reader(request: Request) -> Caller:
    """A caller who may read."""
    return await house_of(request).gate.admit(request, "read")


async def submitter(request: Request) -> Caller:
    """A caller who may submit and act; with a cookie only when the form token comes in a header."""
    gate = house_of(request).gate
    caller = await gate.admit(request, "submit", changes=True)
    if caller.by_browser and caller.name != LOOPBACK:
        gate.check_form(caller, request.headers.get("x-csrf-token", ""))
    return caller


async def planner(request: Request) -> Caller:
    """A caller who may read, for what takes the processor."""
    return await house_of(request).gate.admit(request, "read", changes=True)


TheHouse = Annotated[House, Depends(house_of)]
Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
Planner = Annotated[Caller, Depends(planner)]

Plain = dict[str, Any]
