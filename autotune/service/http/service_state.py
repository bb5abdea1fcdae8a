"""State that all routes share: store, options, access control, counters, response cache, and the
queues of CPU-heavy requests; and the parameters and callers of routes."""

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
from autotune.service.http.fair_use import FairQueue, StreamSlots
from autotune.service.http.response_cache import ResponseCache
from autotune.service.metrics.study_metrics import Counters
from autotune.service.options import LOOPBACK, ServiceOptions
from autotune.service.study_views import RevisionWatch, StudyViews
from autotune.service.supervise.supervisor import Supervisor
from autotune.spec.checks import nearest

T = TypeVar("T")

STREAM_POLL_S = 0.5
"""time between two polls of a study by its event streams, seconds"""
QUEUE_S = 0.5
"""time for which a reading of the waiting studies is reused, seconds"""
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$"
StudyId = Annotated[
    str,
    Path(
        pattern=NAME_PATTERN,
        description="id of a study, a prefix of the id, or its name",
        examples=["kfm4a2b9xq"],
    ),
]
FilterText = Annotated[str, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
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
    """The state of one service, in `app.state.service`."""

    store: ServiceStore
    options: ServiceOptions
    gate: Gate
    counters: Counters
    response_cache: ResponseCache
    supervisor: Supervisor | None = None
    """None if another process runs the store's studies"""
    closing: threading.Event = field(default_factory=threading.Event)
    """set when the service shuts down, which ends open event streams"""
    last_health: tuple[dict[str, Any] | None, float] = (None, 0.0)
    """last health document, and the monotonic time when it was made, seconds"""
    _queue: tuple[list[tuple[str, str]], float] = ([], float("-inf"))
    """waiting studies, and the monotonic time when they were read, seconds"""
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
        self.stream_slots = StreamSlots(self.options)
        self.revisions = RevisionWatch(self.store, interval_s=STREAM_POLL_S)

    def owned(self, caller: Caller, study_id: str) -> StudyRecord:
        """Return the study, if the caller may change it. Raises `NotFoundError` and
        `RefusalError`."""
        record = self.store.study(study_id)
        caller.check_owns(record)
        return record

    def record(
        self, caller: Caller, action: str, study_id: str, data: Mapping[str, Any] | None = None
    ) -> None:
        """Record a caller's action on a study in the audit log. The study's cached responses become
        invalid."""
        self.store.record_audit(caller.name, action, study_id, data or {})
        self.response_cache.invalidate()

    def wake_supervisor(self) -> None:
        """Let the supervisor check for work now, after a study was submitted or controlled."""
        if self.supervisor is not None:
            self.supervisor.wake()

    async def run_heavy(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run a CPU-heavy function that answers a question. Raises `RefusalError` (429) if too many
        of the caller's requests wait."""
        return await self._plans.run(caller.name, partial(self._run_if_valid, caller, work))

    async def run_submission(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run a function that stores a study, without waiting for plans. Raises `RefusalError`
        (429) if too many of the caller's requests wait."""
        return await self._submissions.run(caller.name, partial(self._run_if_valid, caller, work))

    def _run_if_valid(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run the function, unless the caller's token was revoked or expired while the request
        waited."""
        self.gate.check_still_valid(caller)
        return work()

    def queue_position(self, study_id: str) -> dict[str, int] | None:
        """Return the studies ahead of this one in the queue
        (`autotune.results.answers.queue_position`), as of at most `QUEUE_S` ago. Raises
        `NotFoundError`."""

        queue, at_s = self._queue
        if time.monotonic() - at_s >= QUEUE_S:
            queue = self.store.waiting()
            self._queue = queue, time.monotonic()
        return queue_position(queue, self.store.revision(study_id).id) if queue else None

    @property
    def streams(self) -> int:
        """Number of open event streams."""
        return self.stream_slots.count


async def service_state(request: Request) -> ServiceState:
    """Return the state of the service that received the request. This is a coroutine, because
    FastAPI runs plain functions in threads."""
    service: ServiceState = request.app.state.service
    return service


TheService = Annotated[ServiceState, Depends(service_state)]


def check_parameters(request: Request) -> None:
    """Raise `SpecError` for an unknown query parameter and for a repeated one: a misspelled filter
    would otherwise match everything.

    Called after authentication, so that strangers learn no parameter names.
    """
    parameters = request.scope["route"].dependant.query_params
    types = {each.alias: get_origin(each.field_info.annotation) for each in parameters}
    for name in request.query_params:
        if name not in types:
            suggestion = nearest(name, types)
            raise SpecError(
                f"unknown parameter {name[:80]!r}",
                remedy=suggestion or f"this address's parameters: {', '.join(types) or 'none'}",
                field=name[:80],
            )
        if types[name] not in (list, Sequence) and len(request.query_params.getlist(name)) > 1:
            raise SpecError(
                f"{name} is given more than once", remedy=f"pass {name} once", field=name
            )


async def reader(request: Request, service: TheService) -> Caller:
    """Admit a caller with scope read."""
    caller = await service.gate.admit(request, "read")
    check_parameters(request)
    return caller


async def submitter(request: Request, service: TheService) -> Caller:
    """Admit a caller with scope submit. A caller with a cookie must also send the form token in the
    header X-CSRF-Token."""
    caller = await service.gate.admit(request, "submit", changes=True)
    if caller.by_browser and caller.name != LOOPBACK:
        service.gate.check_form(caller, request.headers.get("x-csrf-token", ""))
    check_parameters(request)
    return caller


async def planner(request: Request, service: TheService) -> Caller:
    """Admit a caller with scope read for a CPU-heavy request, under the rate limit of writes."""
    caller = await service.gate.admit(request, "read", changes=True)
    check_parameters(request)
    return caller


Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
Planner = Annotated[Caller, Depends(planner)]

Plain = dict[str, Any]
