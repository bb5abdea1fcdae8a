"""The routes of a study: submit, list, read and control."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune import api
from autotune.errors import NotFoundError
from autotune.ports import StudyRecord
from autotune.results.masking import masked_record
from autotune.service.http.access import Caller
from autotune.service.http.error_responses import RefusalError, StrictJSONResponse, strict_json
from autotune.service.http.service_state import (
    FilterText,
    Limit,
    Offset,
    Reader,
    ServiceState,
    StudyId,
    Submitter,
    TheService,
    Versions,
)
from autotune.service.http.specs import JSON, YAML, allowed_study, read_body
from autotune.service.routes.response_models import (
    EXAMPLE_SPEC,
    BestAnswer,
    ExplainAnswer,
    ExportAnswer,
    RecordAnswer,
    StatusAnswer,
    StudyAnswer,
    StudyList,
    SubmittedAnswer,
    TrialList,
    responses,
)
from autotune.spec import StudyStatus, number_of
from autotune.spec.checks import options_of
from autotune.spec.runs.versions import parse_versions
from autotune.trainers import trainer_names

router = APIRouter(tags=["studies"])

IfNoneMatch = Annotated[
    str | None,
    Header(max_length=2000, description="ETag of the response that the client already has"),
]
KEY_PATTERN = r"^[\x21-\x7e]{1,200}$"
SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/StudyDocument"},
                "example": EXAMPLE_SPEC,
            },
            YAML: {
                "schema": {"$ref": "#/components/schemas/StudyDocument"},
                "example": EXAMPLE_SPEC,
            },
        },
    }
}


MAX_TRIAL = 10**9
"""largest trial number that requests may use"""


class Metric(StrEnum):
    """The metric of an objective."""

    THROUGHPUT = "throughput"
    GOODPUT = "goodput"
    COST = "cost"


class Action(StrEnum):
    """An action on a study."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CANCEL = "cancel"


@router.post(
    "/studies",
    status_code=201,
    openapi_extra=SPEC_BODY,
    responses=responses(409, 415, ok=201, model=SubmittedAnswer),
)
async def submit(
    request: Request,
    service: TheService,
    caller: Submitter,
    idempotency_key: Annotated[
        str | None,
        Header(
            pattern=KEY_PATTERN, description="submitting twice with the same key creates one study"
        ),
    ] = None,
) -> Response:
    """Submit a study. It is stored as QUEUED and starts once the number of running studies is below the service's limit."""

    body, media = await request.body(), request.headers.get("content-type", "")

    def store() -> dict[str, Any]:
        return api.submitted_document(
            submit_study(service, caller, read_body(body, media), idempotency_key)
        )

    document = await service.run_submission(caller, store)
    service.wake_supervisor()
    location = f"/api/v1/studies/{document['study']['id']}"
    return StrictJSONResponse(document, status_code=201, headers={"Location": location})


def submit_study(
    service: ServiceState, caller: Caller, document: dict[str, Any], idempotency_key: str | None
) -> StudyRecord:
    """Store the document's study and record it in the audit log; return the study. Raises errors if
    the service does not allow the spec or too many studies wait."""

    study = allowed_study(document, service.options, may_run=caller.allows("run"))
    waiting = service.store.waiting()
    own = sum(owner == caller.owner for _, owner in waiting)
    if own >= service.options.max_queued_per_owner:
        raise RefusalError(
            429,
            "busy",
            f"an owner may have at most {service.options.max_queued_per_owner:,} waiting studies (--max-waiting), and this owner has {own:,}",
            remedy="wait until some studies have run, or cancel some with `autotune cancel ID`",
            headers={"Retry-After": "60"},
        )
    if len(waiting) >= service.options.max_queued:
        raise RefusalError(
            503,
            "busy",
            f"the queue is full, with {number_of(len(waiting), 'waiting study', 'waiting studies')}",
            remedy="wait until some studies have run, or cancel some with `autotune cancel ID`",
            headers={"Retry-After": "60"},
        )
    record = api.submit_study(
        service.store, study, document, idempotency_key=idempotency_key, owner=caller.owner
    )
    service.record(caller, "study.submit", record.id)
    return record


@router.get("/studies", responses=responses(model=StudyList))
def studies(
    service: TheService,
    caller: Reader,
    status: Annotated[StudyStatus | None, BeforeValidator(str.upper)] = None,
    model: FilterText = "",
    cluster: FilterText = "",
    owner: FilterText = "",
    name: FilterText = "",
    tag: FilterText = "",
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    """List studies, newest first."""

    document = api.studies_document(
        service.store,
        status=status,
        model=model,
        cluster=cluster,
        owner=owner,
        name=name,
        tag=tag,
        limit=limit,
        offset=offset,
    )
    return StrictJSONResponse(document)


@router.get("/studies/{study_id}", responses=responses(304, 404, model=StatusAnswer))
async def status_of(
    study_id: StudyId, service: TheService, caller: Reader, if_none_match: IfNoneMatch = None
) -> Response:
    """Read a study with its best config so far. If you send the last ETag in If-None-Match and nothing has changed, the answer is 304."""

    waits_behind = await run_in_threadpool(service.queue_position, study_id)

    def make(study_id: str) -> bytes:
        document = api.document(service.views.result(study_id))
        return strict_json(document | {"study": document["study"] | {"waits_behind": waits_behind}})

    # other studies change the place in the queue without changing this study's revision
    kind = f"status {waits_behind or ''}"
    return (await service.response_cache.get(study_id, kind, make)).response(if_none_match)


@router.get("/studies/{study_id}/record", responses=responses(304, 404, model=RecordAnswer))
async def record(
    study_id: StudyId, service: TheService, caller: Reader, if_none_match: IfNoneMatch = None
) -> Response:
    """Read the whole study as it is stored. With the trials, this is all that reports and comparisons need."""

    def make(study_id: str) -> bytes:
        return strict_json({"record": masked_record(service.store.study(study_id)).to_dict()})

    return (await service.response_cache.get(study_id, "record", make)).response(if_none_match)


@router.get("/studies/{study_id}/trials", responses=responses(304, 404, model=TrialList))
async def trials(
    study_id: StudyId,
    service: TheService,
    caller: Reader,
    version: Versions = (),
    if_none_match: IfNoneMatch = None,
) -> Response:
    """List the trials of a study, or only those measured with given versions. If you send the last ETag in If-None-Match and nothing has changed, the answer is 304."""
    versions = parse_versions(version)

    def make(study_id: str) -> bytes:
        return strict_json(
            {"trials": api.trial_documents(service.store, study_id, version=version)}
        )

    kind = " ".join(
        ["trials", *(f"{name}={version}" for name, version in sorted(versions.items()))]
    )
    return (await service.response_cache.get(study_id, kind, make)).response(if_none_match)


@router.get("/studies/{study_id}/best", responses=responses(404, model=BestAnswer))
def best(
    study_id: StudyId,
    service: TheService,
    caller: Reader,
    top: Limit = 1,
    pareto: bool = False,
    metric: Annotated[
        Metric | None, Query(description="rank by this metric instead of the study's own")
    ] = None,
    stability_weight: Annotated[
        float | None,
        Query(ge=0, le=1, description="rank with this stability weight instead of the study's own"),
    ] = None,
    version: Versions = (),
) -> Response:
    """Rank the configs of a study by its own objective or by another one. Nothing is rerun.

    With `pareto`: the configs that no other config beats in all of speed, stability, memory headroom and cost, with these four values.
    """

    ranking = api.ranking_document(
        service.views.result(study_id),
        top=top,
        pareto=pareto,
        metric=metric,
        stability_weight=stability_weight,
        version=version,
    )
    return StrictJSONResponse(ranking)


@router.get("/studies/{study_id}/explain", responses=responses(404, model=ExplainAnswer))
def explain(
    study_id: StudyId,
    service: TheService,
    caller: Reader,
    trial: Annotated[
        int | None,
        Query(ge=0, le=MAX_TRIAL, description="number of the trial; default: the winner"),
    ] = None,
) -> Response:
    """Explain why a trial won or lost: the parts of its reward, compared with the baseline and the runner-up (or the winner)."""

    return StrictJSONResponse(api.explained(service.views.result(study_id), trial))


@router.get("/studies/{study_id}/export/{trainer}", responses=responses(404, model=ExportAnswer))
async def export(
    study_id: StudyId,
    trainer: str,
    service: TheService,
    caller: Reader,
    option: Annotated[
        list[str],
        Query(max_length=50, description="a trainer or scheduler option, KEY=VALUE"),
    ] = [],  # noqa: B006
    on: Annotated[
        FilterText, Query(description="launcher on the nodes: shell, slurm, ray or kubernetes")
    ] = "",
    trial: Annotated[
        int | None,
        Query(ge=0, le=MAX_TRIAL, description="export this trial's config; default: the best one"),
    ] = None,
) -> Response:
    """Export the best config for a trainer: command, environment, files, and a job for a scheduler. Nothing is written or started."""
    work = partial(export_document, service, caller, study_id, trainer, option, on, trial)
    return StrictJSONResponse(await service.run_heavy(caller, work))


def export_document(
    service: ServiceState,
    caller: Caller | None,
    study_id: str,
    trainer: str,
    pairs: list[str],
    on: str = "",
    trial: int | None = None,
) -> dict[str, Any]:
    """Return the launch as a document; only the study's owner gets the spec's secrets."""

    if trainer not in trainer_names():
        raise NotFoundError(
            f"there is no trainer {trainer[:80]!r}",
            remedy=f"choose one of {', '.join(trainer_names())}",
        )
    options = options_of(pairs, field="option", example="data_path=/data")
    record = service.store.study(study_id)
    study = record.study if caller is not None and caller.owns(record) else None
    return api.launch_document(
        service.views.result(study_id), trainer, options, on=on, trial=trial, study=study
    )


@router.post("/studies/{study_id}/{action}", responses=responses(404, 409, model=StudyAnswer))
def act(study_id: StudyId, action: Action, service: TheService, caller: Submitter) -> Response:
    """Control a study. pause: start no new trials. resume: continue. stop: let running trials finish and name the best config. cancel: kill running trials and end."""

    return StrictJSONResponse(
        {"study": api.study_document(act_on_study(service, caller, study_id, action))}
    )


def act_on_study(service: ServiceState, caller: Caller, study_id: str, action: str) -> StudyRecord:
    """Perform an action on a study and record it in the audit log; return the study."""

    record = api.act(service.store, service.owned(caller, study_id).id, str(action))
    service.record(caller, f"study.{action}", record.id)
    service.wake_supervisor()
    return record
