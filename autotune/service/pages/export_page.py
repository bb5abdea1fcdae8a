"""A study's best config, or that of a trial, as a launch of a trainer: command, files, and an
archive of them."""

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
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import Visitor, trial_number
from autotune.service.routes.studies import exported
from autotune.temporary_folders import TemporaryFolder
from autotune.trainers import Launch, trainer_names, write_launch
from autotune.trainers.schedulers import SCHEDULERS

router = APIRouter()


@router.get("/studies/{study_id}/export")
async def export(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """The launch, or what the trainer still needs to be told."""
    record = await run_in_threadpool(service.store.study, study_id)
    asked = _asked(request, record.study.trainer)
    values: dict[str, Any] = {"launch": None, "error": None, "status": 200}
    try:
        document = await service.plan(
            caller, partial(exported, service, caller, record.id, *_arguments(asked))
        )
        values["launch"] = {**document, "command": command_of(document)}
    except AutotuneError as error:
        values |= {"error": error, "status": status_of(error)}
    return render(
        "export.html",
        caller=caller,
        study={"id": record.id, "name": record.study.name, "trainer": record.study.trainer},
        asked=asked,
        trainers=trainer_names(),
        schedulers=list(SCHEDULERS),
        query=request.url.query,
        **values,
    )


@router.get("/studies/{study_id}/export.zip")
async def archive(
    study_id: str, request: Request, service: TheService, caller: Visitor
) -> Response:
    """The files that `autotune export -o FOLDER` writes, as an archive."""
    record = await run_in_threadpool(service.store.study, study_id)
    asked = _asked(request, record.study.trainer)

    def work() -> bytes:
        return _archive(exported(service, caller, record.id, *_arguments(asked)))

    headers = {"Content-Disposition": f'attachment; filename="launch-{record.id}.zip"'}
    return Response(await service.plan(caller, work), media_type="application/zip", headers=headers)


def _asked(request: Request, trainer: str) -> dict[str, str]:
    query = request.query_params
    names = ("trainer", "on", "trial", "options")
    asked = {name: query.get(name, "")[:2000] for name in names}
    return asked | {"trainer": asked["trainer"] or trainer, "on": asked["on"] or "shell"}


def _arguments(asked: dict[str, str]) -> tuple[str, list[str], str, int | None]:
    """Trainer, options as KEY=VALUE, scheduler and trial number. Raises `SpecError`."""
    number = trial_number(asked["trial"]) if asked["trial"] else None
    return asked["trainer"], asked["options"].split(), asked["on"], number


def command_of(document: dict[str, Any]) -> str:
    """The command line of the export's document, started in the folder of its files."""
    return _launch_of(document).placed(".").command_line


def _launch_of(document: dict[str, Any]) -> Launch:
    """The launch of the export's document."""

    parts = {name: document[name] for name in ("env", "files", "cwd", "python")}
    return Launch(
        argv=tuple(document["argv"]),
        notes=tuple(document["notes"]),
        tuned=document.get("tuned", {}),
        **parts,
    )


def _archive(document: dict[str, Any]) -> bytes:
    packed = io.BytesIO()
    with (
        TemporaryFolder("export") as folder,
        zipfile.ZipFile(packed, "w") as file,
    ):
        for path in write_launch(_launch_of(document), folder, job=document["job"]):
            file.write(path, Path("launch") / path.relative_to(folder), zipfile.ZIP_DEFLATED)
    return packed.getvalue()
