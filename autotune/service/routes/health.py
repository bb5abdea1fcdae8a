"""The state of the service itself: health for probes, metrics for Prometheus."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune import __version__
from autotune.errors import StoreError
from autotune.ports import Statistics, StudyRecord
from autotune.service.http.error_responses import RefusalError, StrictJSONResponse
from autotune.service.http.service_state import Reader, ServiceState, TheService, check_parameters
from autotune.service.metrics.study_metrics import CONTENT_TYPE
from autotune.service.routes.response_models import ERRORS, ErrorDocument, HealthAnswer, responses
from autotune.settings import data_folder
from autotune.spec import StudyStatus

router = APIRouter(tags=["state"])

MIN_FREE_BYTES = 256 << 20
"""free disk space below which the health check fails, bytes: 256 MiB"""
MAX_ACTIVE = 200
"""maximum number of active studies with metrics by trial status"""
REUSED_S = 2.0
"""time for which a health document is reused, seconds"""


def _responses(failing: str) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route that can answer 503 with its document. `failing`: description
    of the 503."""
    return {**responses(model=HealthAnswer), 503: {"model": HealthAnswer, "description": failing}}


@router.get("/health", responses=_responses("A check fails"))
async def health(request: Request, service: TheService) -> Response:
    """Check whether the service works: ok (200) or failing (503). Needs no token. Callers with the `read` scope also see each check."""
    check_parameters(request)
    try:
        caller = await service.gate.authenticate(request)
    except RefusalError:
        caller = None
    document = await run_in_threadpool(examine, service)
    public = {key: document[key] for key in ("status", "version")}
    return _response(document if caller else public)


@router.get("/health/live", responses=responses(model=HealthAnswer))
async def live(request: Request) -> Response:
    """Check whether the process answers. Restart it if it does not. A restart does not fix the
    other problems that `health` reports. Needs no token."""
    check_parameters(request)
    return _response({"status": "ok", "version": __version__})


@router.get("/health/ready", responses=_responses("The results database cannot be read"))
async def ready(request: Request, service: TheService) -> Response:
    """Check whether requests can be answered: the results database must be readable. Without Ray, history and pages are still served. Needs no token."""
    check_parameters(request)
    document = await run_in_threadpool(examine, service)
    status = "ok" if document["checks"]["store"] == "ok" else "failing"
    return _response({"status": status, "version": __version__})


def _response(document: dict[str, Any]) -> Response:
    return StrictJSONResponse(document, status_code=200 if document["status"] == "ok" else 503)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {"schema": {"type": "string"}}},
            "description": "Prometheus' text format",
        },
        **{
            s: {"model": ErrorDocument, "description": ERRORS[s]}
            for s in (400, 401, 403, 405, 408, 413, 421, 429, 500, 503)
        },
    },
)
def metrics(service: TheService, caller: Reader) -> Response:
    """Export counts of studies, trials, failures and requests, and the health checks, for Prometheus. Works even while the store is unavailable."""
    active: list[StudyRecord] = []
    statistics: Statistics | None = None
    with contextlib.suppress(StoreError):
        statistics = service.store.statistics()
        for status in (StudyStatus.RUNNING, StudyStatus.STOPPING):
            active += service.store.studies(status=status, limit=MAX_ACTIVE)
    text = service.counters.text(examine(service), statistics, active, streams=service.streams)
    return Response(text, media_type=CONTENT_TYPE)


def examine(service: ServiceState) -> dict[str, Any]:
    """Return the health document: checks of the store, the disk and the supervisor (which includes
    Ray), and the version."""
    cached, made_s = service.last_health
    if cached is not None and time.monotonic() - made_s < REUSED_S:
        return cached
    problems: dict[str, str] = {"store": "", "disk": "", "supervisor": ""}
    try:
        service.store.ping()
    except StoreError as error:
        problems["store"] = error.message
    folder = data_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        problems["disk"] = f"only {free >> 20} MiB are free"
    if service.supervisor is not None:
        problems["supervisor"] = service.supervisor.health()
    document: dict[str, Any] = {
        "status": "failing" if any(problems.values()) else "ok",
        "version": __version__,
        "checks": {name: text or "ok" for name, text in problems.items()},
        "way": service.options.way if service.supervisor else "none",
        "running": len(service.supervisor.running) if service.supervisor else 0,
        "disk_free_bytes": free,
    }
    service.last_health = (document, time.monotonic())
    return document
