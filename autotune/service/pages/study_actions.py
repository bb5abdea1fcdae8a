"""What forms of a study's page do beside pausing and the like: notes, tags, and deleting the study, which asks first."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune import api
from autotune.report.deletion_notice import deletion_lines
from autotune.service.http.service_state import service_state_of
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import changing, done, page
from autotune.service.routes.study_annotations import deleted, noted, tagged, unnoted

router = APIRouter()


@router.post("/studies/{study_id}/notes")
@page
async def add_note(request: Request) -> Response:
    """Writes a note."""
    service, caller, form = await changing(request)
    study_id = request.path_params["study_id"]
    await run_in_threadpool(noted, service, caller, study_id, form.get("text", ""))
    return done(f"/studies/{study_id}", "note")


@router.post("/studies/{study_id}/notes/{number:int}/remove")
@page
async def remove_note(request: Request) -> Response:
    """Removes a note."""
    service, caller, _ = await changing(request)
    study_id = request.path_params["study_id"]
    await run_in_threadpool(unnoted, service, caller, study_id, request.path_params["number"])
    return done(f"/studies/{study_id}", "unnote")


@router.post("/studies/{study_id}/tags")
@page
async def change_tags(request: Request) -> Response:
    """Adds the tags that were typed, separated by spaces or commas, or removes the one whose button was pressed."""
    service, caller, form = await changing(request)
    study_id = request.path_params["study_id"]
    add = [tag for tag in re.split(r"[\s,]+", form.get("add", "")) if tag]
    remove = [form["remove"]] if "remove" in form else []
    await run_in_threadpool(tagged, service, caller, study_id, add, remove)
    return done(f"/studies/{study_id}", "tag")


@router.get("/studies/{study_id}/delete")
@page
async def ask_to_delete(request: Request) -> Response:
    """Says what deleting the study takes away, and asks."""

    service = service_state_of(request)
    caller = await service.gate.admit(request, "submit")
    record = await run_in_threadpool(service.store.study, request.path_params["study_id"])
    caller.check_owns(record)
    found = await run_in_threadpool(api.deletion_of, service.store, record.id)
    return render("delete.html", caller=caller, study=found.to_dict(), lines=deletion_lines(found.to_dict()))


@router.post("/studies/{study_id}/delete")
@page
async def delete(request: Request) -> Response:
    """Deletes the study."""
    service, caller, _ = await changing(request)
    await run_in_threadpool(deleted, service, caller, request.path_params["study_id"])
    return done("/studies", "delete")
