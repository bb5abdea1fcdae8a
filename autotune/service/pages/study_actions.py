"""What forms of a study's page do beside pausing and the like: notes, tags, and deleting the study,
which asks first."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.responses import Response

from autotune import api
from autotune.report.deletion_notice import deletion_lines
from autotune.service.http.service_state import TheService
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import Changer, OwnForm, Writer, done
from autotune.service.routes.study_annotations import deleted, noted, tagged, unnoted

router = APIRouter()


@router.post("/studies/{study_id}/notes")
def add_note(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Writes a note."""
    noted(service, caller, study_id, form.get("text", ""))
    return done(f"/studies/{study_id}", "note")


@router.post("/studies/{study_id}/notes/{number:int}/remove")
def remove_note(
    study_id: str, number: int, service: TheService, caller: Changer, form: OwnForm
) -> Response:
    """Removes a note."""
    unnoted(service, caller, study_id, number)
    return done(f"/studies/{study_id}", "unnote")


@router.post("/studies/{study_id}/tags")
def change_tags(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Adds the tags that were typed, separated by spaces or commas, or removes the one whose button
    was pressed."""
    add = [tag for tag in re.split(r"[\s,]+", form.get("add", "")) if tag]
    remove = [form["remove"]] if "remove" in form else []
    tagged(service, caller, study_id, add, remove)
    return done(f"/studies/{study_id}", "tag")


@router.get("/studies/{study_id}/delete")
def ask_to_delete(study_id: str, service: TheService, caller: Writer) -> Response:
    """Says what deleting the study takes away, and asks."""
    found = api.deletion_of(service.store, service.owned(caller, study_id).id).to_dict()
    return render("delete.html", caller=caller, study=found, lines=deletion_lines(found))


@router.post("/studies/{study_id}/delete")
def delete(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Deletes the study."""
    deleted(service, caller, study_id)
    return done("/studies", "delete")
