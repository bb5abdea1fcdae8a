"""The export of a study's best config, or of a trial's config, as a launch of a trainer: command,
files, and an archive of the files."""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune.errors import AutotuneError
from autotune.service.http.error_responses import status_of
from autotune.service.http.service_state import TheService
from autotune.service.pages.page_requests import Visitor, parse_trial_number
from autotune.service.pages.rendering import render
from autotune.service.routes.studies import export_document
from autotune.temporary_folders import TemporaryFolder
from autotune.trainers import Launch, trainer_names, write_launch
from autotune.trainers.schedulers import SCHEDULERS

router = APIRouter()


@router.get("/studies/{study_id}/export")
async def export(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """Show the launch, or which options the trainer still needs."""
    record = await run_in_threadpool(service.store.study, study_id)
    parameters = _parameters(request, record.study.trainer)
    values: dict[str, Any] = {"launch": None, "error": None, "status": 200}
    try:
        document = await service.run_heavy(
            caller, partial(export_document, service, caller, record.id, *_arguments(parameters))
        )
        values["launch"] = {**document, "command": command_of(document)}
    except AutotuneError as error:
        values |= {"error": error, "status": status_of(error)}
    return render(
        "export.html",
        caller=caller,
        study={"id": record.id, "name": record.study.name, "trainer": record.study.trainer},
        asked=parameters,
        trainers=trainer_names(),
        schedulers=list(SCHEDULERS),
        query=request.url.query,
        **values,
    )


@router.get("/studies/{study_id}/export.zip")
async def archive(
    study_id: str, request: Request, service: TheService, caller: Visitor
) -> Response:
    """Return an archive with the files that `autotune export -o FOLDER` writes."""
    record = await run_in_threadpool(service.store.study, study_id)
    parameters = _parameters(request, record.study.trainer)

    def work() -> bytes:
        return _archive(export_document(service, caller, record.id, *_arguments(parameters)))

    headers = {"Content-Disposition": f'attachment; filename="launch-{record.id}.zip"'}
    return Response(
        await service.run_heavy(caller, work), media_type="application/zip", headers=headers
    )


def _parameters(request: Request, trainer: str) -> dict[str, str]:
    """Return the query parameters of an export, with defaults."""
    parameters = {
        name: request.query_params.get(name, "")[:2000]
        for name in ("trainer", "on", "trial", "options")
    }
    return parameters | {
        "trainer": parameters["trainer"] or trainer,
        "on": parameters["on"] or "shell",
    }


def _arguments(parameters: dict[str, str]) -> tuple[str, list[str], str, int | None]:
    """Return trainer, options as KEY=VALUE, scheduler and trial number. Raises `SpecError`."""
    number = parse_trial_number(parameters["trial"]) if parameters["trial"] else None
    return parameters["trainer"], parameters["options"].split(), parameters["on"], number


def command_of(document: dict[str, Any]) -> str:
    """Return the command line of an exported launch, started in the folder of its files."""
    return _launch(document).placed(".").command_line


def _launch(document: dict[str, Any]) -> Launch:
    """Return an exported document as a `Launch`."""

    parts = {name: document[name] for name in ("env", "files", "cwd", "python")}
    return Launch(
        argv=tuple(document["argv"]),
        notes=tuple(document["notes"]),
        tuned=document.get("tuned", {}),
        **parts,
    )


def _archive(document: dict[str, Any]) -> bytes:
    """Return the launch's files as a zip archive."""
    packed = io.BytesIO()
    with (
        TemporaryFolder("export") as folder,
        zipfile.ZipFile(packed, "w") as file,
    ):
        for path in write_launch(_launch(document), folder, job=document["job"]):
            file.write(path, Path("launch") / path.relative_to(folder), zipfile.ZIP_DEFLATED)
    return packed.getvalue()
