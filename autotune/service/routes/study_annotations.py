"""The routes for notes and tags on studies, and for deleting a study.

Every caller with scope submit may write notes. Only the study's owner and admins may change tags,
remove other people's notes and delete the study.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response

from autotune import api
from autotune.ports import StudyRecord
from autotune.schema.document import Document
from autotune.service.http.access import Caller
from autotune.service.http.error_responses import StrictJSONResponse
from autotune.service.http.json_route import JsonRoute
from autotune.service.http.service_state import Reader, ServiceState, StudyId, Submitter, TheService
from autotune.service.routes.response_models import (
    DeletionAnswer,
    NoteAnswer,
    NoteList,
    StudyAnswer,
    responses,
)
from autotune.spec.runs.observed import MAX_NOTE, MAX_TAGS

router = APIRouter(tags=["annotations"], route_class=JsonRoute)

NoteNumber = Annotated[int, Path(ge=0, le=1 << 60, description="number of the note")]
Tags = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=5 * MAX_TAGS)]


class NoteBody(Document):
    """A note to write."""

    text: str = Field(
        max_length=2 * MAX_NOTE,
        description="plain text",
        examples=["slower since the driver update"],
    )


class TagsBody(Document):
    """Tags to add and to remove."""

    add: Tags = Field(default=[], examples=[["h100-sweep"]])
    remove: Tags = Field(default=[])


@router.get("/studies/{study_id}/notes", responses=responses(404, model=NoteList))
def notes(study_id: StudyId, service: TheService, caller: Reader) -> Response:
    """List the notes of a study, oldest first."""
    return StrictJSONResponse(
        {"notes": [note.to_dict() for note in service.store.annotations.notes(study_id)]}
    )


@router.post(
    "/studies/{study_id}/notes", status_code=201, responses=responses(404, ok=201, model=NoteAnswer)
)
def add_note(study_id: StudyId, body: NoteBody, service: TheService, caller: Submitter) -> Response:
    """Write a note on a study, which may belong to somebody else. Repeating the last note adds nothing."""
    return StrictJSONResponse(
        {"note": add_study_note(service, caller, study_id, body.text)}, status_code=201
    )


@router.delete("/studies/{study_id}/notes/{number}", responses=responses(404, model=NoteList))
def remove_note(
    study_id: StudyId, number: NoteNumber, service: TheService, caller: Submitter
) -> Response:
    """Remove a note permanently. Its author, the study's owner and admins may do so. Returns the remaining notes."""
    remove_study_note(service, caller, study_id, number)
    return notes(study_id, service, caller)


@router.patch("/studies/{study_id}/tags", responses=responses(404, model=StudyAnswer))
def change_tags(
    study_id: StudyId, body: TagsBody, service: TheService, caller: Submitter
) -> Response:
    """Add and remove tags of a study. Adding a tag that exists or removing one that does not is not an error."""

    record = change_study_tags(service, caller, study_id, body.add, body.remove)
    return StrictJSONResponse({"study": api.study_document(record)})


@router.get("/studies/{study_id}/deletion", responses=responses(404, 409, model=DeletionAnswer))
def deletion(study_id: StudyId, service: TheService, caller: Reader) -> Response:
    """Show what would be deleted with the study. Deletes nothing."""

    return StrictJSONResponse({"deletion": api.deletion_of(service.store, study_id).to_dict()})


@router.delete("/studies/{study_id}", responses=responses(404, 409, model=DeletionAnswer))
def delete(study_id: StudyId, service: TheService, caller: Submitter) -> Response:
    """Delete an ended study permanently, with its trials and history. Queries across studies no longer include its measurements."""
    return StrictJSONResponse({"deletion": delete_study(service, caller, study_id)})


def add_study_note(
    service: ServiceState, caller: Caller, study_id: str, text: str
) -> dict[str, Any]:
    """Add a note, record it in the audit log and return it."""
    record = service.store.study(study_id)
    note = service.store.annotations.add_note(record.id, text, author=caller.owner)
    service.record(caller, "study.note", record.id)
    return note.to_dict()


def remove_study_note(service: ServiceState, caller: Caller, study_id: str, number: int) -> None:
    """Remove one of the caller's own notes, or any note on a study that the caller owns."""
    record = service.store.study(study_id)
    notes_by_number = {note.number: note for note in service.store.annotations.notes(record.id)}
    if number in notes_by_number and not (
        caller.owner and notes_by_number[number].author == caller.owner
    ):
        caller.check_owns(record)
    service.store.annotations.remove_note(record.id, number, author=caller.owner)
    service.record(caller, "study.note_removed", record.id, {"note": number})


def change_study_tags(
    service: ServiceState, caller: Caller, study_id: str, add: list[str], remove: list[str]
) -> StudyRecord:
    """Change a study's tags and return the study."""
    record = service.store.annotations.change_tags(
        service.owned(caller, study_id).id, add=add, remove=remove, author=caller.owner
    )
    service.record(caller, "study.tag", record.id, {"tags": list(record.tags)})
    return record


def delete_study(service: ServiceState, caller: Caller, study_id: str) -> dict[str, Any]:
    """Delete the study, which must have ended, and return what was deleted."""
    record = service.owned(caller, study_id)
    deletion = api.delete_study(service.store, record.id).to_dict()
    service.record(caller, "study.delete", record.id, deletion)
    return deletion
