"""The state of the service itself: health for probes, metrics for Prometheus."""

from __future__ import annotations

import shutil
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune import __version__
from autotune.errors import StoreError
from autotune.service.counters import CONTENT_TYPE
from autotune.service.error_responses import RefusalError, StrictJSONResponse
from autotune.service.response_models import ERRORS, ErrorDocument, HealthAnswer, responses
from autotune.service.service_state import Reader, ServiceState, TheService, check_parameters
from autotune.settings import data_folder

router = APIRouter(tags=["state"])

MIN_FREE_BYTES = 256 << 20
REUSED_S = 2.0
"""time for which a health document is reused"""


@router.get(
    "/health",
    responses={
        **responses(model=HealthAnswer),
        503: {"model": HealthAnswer, "description": "A check fails"},
    },
)
async def health(request: Request, service: TheService) -> Response:
    """Whether the service works: ok (200) or failing (503). Needs no token; callers with scope read also see each check."""
    check_parameters(request)
    try:
        caller = await service.gate.recognize(request)
    except RefusalError:
        caller = None
    found = await run_in_threadpool(examine, service)
    brief = {key: found[key] for key in ("status", "version")}
    return StrictJSONResponse(found if caller else brief, status_code=200 if found["status"] == "ok" else 503)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format"},
        **{
            s: {"model": ErrorDocument, "description": ERRORS[s]}
            for s in (400, 401, 403, 405, 408, 413, 421, 429, 500, 503)
        },
    },
)
def metrics(service: TheService, caller: Reader) -> Response:
    """Counts of studies, trials, failures and requests, for Prometheus."""
    return Response(service.counters.text(service.store.statistics(), streams=service.streams), media_type=CONTENT_TYPE)


def examine(service: ServiceState) -> dict[str, Any]:
    """The health document: checks of store, disk and supervisor (which includes Ray), and the version."""
    kept, at = service.last_health
    if kept is not None and time.monotonic() - at < REUSED_S:
        return kept
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
