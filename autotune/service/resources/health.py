"""How the service itself is: health for probes, metrics for Prometheus."""

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
KEPT_S = 2.0
"""an examination serves all who ask within so long"""


@router.get(
    "/health",
    responses={
        **responses(model=HealthAnswer),
        503: {"model": HealthAnswer, "description": "Something does not work"},
    },
)
async def health(request: Request, service: TheService) -> Response:
    """ok (200) or failing (503). Anybody may ask; the parts are told to callers who may read."""
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
    """Studies, trials, failures, requests."""
    return Response(service.counters.text(service.store.statistics(), streams=service.streams), media_type=CONTENT_TYPE)


def examine(service: ServiceState) -> dict[str, Any]:
    """Store, disk, supervisor (and with it Ray) and version."""
    kept, at = service.examined
    if kept is not None and time.monotonic() - at < KEPT_S:
        return kept
    trouble: dict[str, str] = {"store": "", "disk": "", "supervisor": ""}
    try:
        service.store.ping()
    except StoreError as error:
        trouble["store"] = error.message
    folder = data_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        trouble["disk"] = f"only {free >> 20} MiB are free"
    if service.supervisor is not None:
        trouble["supervisor"] = service.supervisor.health()
    document: dict[str, Any] = {
        "status": "failing" if any(trouble.values()) else "ok",
        "version": __version__,
        "checks": {name: text or "ok" for name, text in trouble.items()},
        "way": service.options.way if service.supervisor else "none",
        "running": len(service.supervisor.running) if service.supervisor else 0,
        "disk_free_bytes": free,
    }
    service.examined = (document, time.monotonic())
    return document
