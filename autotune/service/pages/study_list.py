"""The list of studies, with filters."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from autotune import api
from autotune.service.http.service_state import TheService
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import REFRESH_S, Visitor, said
from autotune.spec import StudyStatus
from autotune.spec.checks import member_of

router = APIRouter()

PAGE = 50
"""studies on a page of the list"""


@router.get("/")
async def home(request: Request) -> Response:
    """The list of studies."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/studies")
def studies(request: Request, service: TheService, caller: Visitor) -> Response:
    """Studies, newest first."""
    asked = {name: request.query_params.get(name, "")[:200] for name in ("status", "model", "cluster", "owner", "tag")}
    status = member_of("status", asked["status"], StudyStatus) if asked["status"] else None
    number = request.query_params.get("page", "1")
    at = int(number) if number.isascii() and number.isdigit() and 0 < len(number) < 9 else 1
    filters: dict[str, Any] = {name: value for name, value in asked.items() if name != "status"}
    found = service.store.studies(status=status, limit=PAGE + 1, offset=PAGE * max(0, at - 1), **filters)
    judged = (api.judged_today(service.store, record) for record in found[:PAGE])
    return render(
        "studies.html",
        said=said(request),
        caller=caller,
        asked=asked,
        wanted=status,
        page=at,
        statuses=list(StudyStatus),
        refresh=REFRESH_S,
        studies=[api.study_document(record) for record in judged],
        more=len(found) > PAGE,
    )
