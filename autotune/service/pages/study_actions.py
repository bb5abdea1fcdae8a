"""The forms of a study's page for notes, tags, and deleting the study after confirmation."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.responses import Response

from autotune import api
from autotune.report.deletion_notice import deletion_lines
from autotune.service.http.service_state import TheService
from autotune.service.pages.page_requests import Changer, OwnForm, Writer, redirect_after
from autotune.service.pages.rendering import render
from autotune.service.routes.study_annotations import (
    add_study_note,
    change_study_tags,
    delete_study,
    remove_study_note,
)

router = APIRouter()


@router.post("/studies/{study_id}/notes")
def add_note(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Add a note."""
    add_study_note(service, caller, study_id, form.get("text", ""))
    return redirect_after(f"/studies/{study_id}", "note")


@router.post("/studies/{study_id}/notes/{number:int}/remove")
def remove_note(
    study_id: str, number: int, service: TheService, caller: Changer, form: OwnForm
) -> Response:
    """Remove a note."""
    remove_study_note(service, caller, study_id, number)
    return redirect_after(f"/studies/{study_id}", "unnote")


@router.post("/studies/{study_id}/tags")
def change_tags(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Add the entered tags, separated by spaces or commas, or remove the tag whose button was
    pressed."""
    add = [tag for tag in re.split(r"[\s,]+", form.get("add", "")) if tag]
    remove = [form["remove"]] if "remove" in form else []
    change_study_tags(service, caller, study_id, add, remove)
    return redirect_after(f"/studies/{study_id}", "tag")


@router.get("/studies/{study_id}/delete")
def confirm_deletion(study_id: str, service: TheService, caller: Writer) -> Response:
    """Show what would be deleted with the study, and ask for confirmation."""
    deletion = api.deletion_of(service.store, service.owned(caller, study_id).id).to_dict()
    return render("delete.html", caller=caller, study=deletion, lines=deletion_lines(deletion))


@router.post("/studies/{study_id}/delete")
def delete(study_id: str, service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Delete the study."""
    delete_study(service, caller, study_id)
    return redirect_after("/studies", "delete")
