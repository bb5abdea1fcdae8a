"""State that all routes share: store, options, access control, counters, response cache, and the
queues of CPU-heavy requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar, get_origin

from fastapi import Depends, Path, Query, Request

from autotune.errors import SpecError
from autotune.ports import ServiceStore, StudyRecord
from autotune.results.answers import queue_position
from autotune.service.http.access import Caller, Gate
from autotune.service.http.fair_use import FairQueue, StreamPlaces
from autotune.service.http.response_cache import ResponseCache
from autotune.service.metrics.study_metrics import Counters
from autotune.service.options import LOOPBACK, ServiceOptions
from autotune.service.study_views import RevisionWatch, StudyViews
from autotune.service.supervise.supervisor import Supervisor
from autotune.spec.checks import nearest

T = TypeVar("T")

STREAM_POLL_S = 0.5
"""time between two looks of an event stream at its study"""
LINE_S = 0.5
"""time for which a reading of the studies that wait is used"""
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$"
StudyId = Annotated[
    str,
    Path(
        pattern=NAME_PATTERN,
        description="id of a study, a prefix of the id, or its name",
        examples=["kfm4a2b9xq"],
    ),
]
Word = Annotated[str, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Versions = Annotated[
    Sequence[str],
    Query(
        max_length=20,
        description="NAME=VERSION, e.g. torch=2.12; only measurements with all of these versions",
    ),
]
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
    last_health: tuple[dict[str, Any] | None, float] = (None, 0.0)
    """the last health document, and the monotonic time at which it was made"""
    _line: tuple[list[tuple[str, str]], float] = ([], float("-inf"))
    """the studies that wait, and the monotonic time at which they were read"""
    _plans: FairQueue = field(
        default_factory=lambda: FairQueue(
            "plans and searches", places=2, places_per_caller=1, waiting_per_caller=200
        )
    )
    _submissions: FairQueue = field(
        default_factory=lambda: FairQueue(
            "submissions", places=2, places_per_caller=1, waiting_per_caller=2000
        )
    )

    def __post_init__(self) -> None:
        self.views = StudyViews(self.store)
        self.stream_places = StreamPlaces(self.options)
        self.revisions = RevisionWatch(self.store, interval_s=STREAM_POLL_S)

    def owned(self, caller: Caller, study_id: str) -> StudyRecord:
        """The study, if the caller may change it. Raises `NotFoundError` and `RefusalError`."""
        record = self.store.study(study_id)
        caller.check_owns(record)
        return record

    def record(
        self, caller: Caller, action: str, study_id: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Writes down what a caller did to a study, whose cached responses are no longer valid."""
        self.store.record_audit(caller.name, action, study_id, data or {})
        self.response_cache.invalidate()

    def changed(self) -> None:
        """A study was submitted or acted on: wakes the supervisor."""
        if self.supervisor is not None:
            self.supervisor.wake()

    async def plan(self, caller: Caller, what: Callable[[], T]) -> T:
        """Runs a CPU-heavy function that answers a question. Raises `RefusalError` (429) when too
        many of the caller wait."""
        return await self._plans.run(caller.name, partial(self._of_valid_caller, caller, what))

    async def submit(self, caller: Caller, what: Callable[[], T]) -> T:
        """Runs a function that stores a study; it waits behind no plan. Raises `RefusalError` (429)
        when too many of the caller wait."""
        return await self._submissions.run(
            caller.name, partial(self._of_valid_caller, caller, what)
        )

    def _of_valid_caller(self, caller: Caller, what: Callable[[], T]) -> T:
        """Runs the function, unless the caller's token was revoked or expired while it waited for
        its turn."""
        self.gate.check_still_valid(caller)
        return what()

    def queue_position(self, study_id: str) -> dict[str, int] | None:
        """Behind what the study waits (`autotune.results.answers.queue_position`), at most `LINE_S`
        old. Raises `NotFoundError`."""

        line, at_s = self._line
        if time.monotonic() - at_s >= LINE_S:
            line = self.store.waiting()
            self._line = line, time.monotonic()
        return queue_position(line, self.store.revision(study_id).id) if line else None

    @property
    def streams(self) -> int:
        """Number of open event streams."""
        return self.stream_places.count


async def service_state(request: Request) -> ServiceState:
    """The state of the service that received the request; not a plain function, which FastAPI would
    run in a thread."""
    found: ServiceState = request.app.state.service
    return found


TheService = Annotated[ServiceState, Depends(service_state)]


def check_parameters(request: Request) -> None:
    """Raises `SpecError` for a query parameter that the route does not have, and for one value too
    many: a misspelt filter would otherwise match everything.

    Called after authentication, so that strangers learn no parameter names.
    """
    parameters = request.scope["route"].dependant.query_params
    known = {each.alias: get_origin(each.field_info.annotation) for each in parameters}
    for name in request.query_params:
        if name not in known:
            near = nearest(name, known)
            raise SpecError(
                f"unknown parameter {name[:80]!r}",
                remedy=near or f"this address's parameters: {', '.join(known) or 'none'}",
                field=name[:80],
            )
        if known[name] not in (list, Sequence) and len(request.query_params.getlist(name)) > 1:
            raise SpecError(
                f"{name} is given more than once", remedy=f"pass {name} once", field=name
            )


async def reader(request: Request, service: TheService) -> Caller:
    """Admits a caller with scope read."""
    caller = await service.gate.admit(request, "read")
    check_parameters(request)
    return caller


async def submitter(request: Request, service: TheService) -> Caller:
    """Admits a caller with scope submit. A caller with a cookie must also send the form token in
    the header X-CSRF-Token."""
    caller = await service.gate.admit(request, "submit", changes=True)
    if caller.by_browser and caller.name != LOOPBACK:
        service.gate.check_form(caller, request.headers.get("x-csrf-token", ""))
    check_parameters(request)
    return caller


async def planner(request: Request, service: TheService) -> Caller:
    """Admits a caller with scope read, under the rate limit of writes, for CPU-heavy requests."""
    caller = await service.gate.admit(request, "read", changes=True)
    check_parameters(request)
    return caller


Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
Planner = Annotated[Caller, Depends(planner)]

Plain = dict[str, Any]
