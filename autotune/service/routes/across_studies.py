"""Routes across studies: the best configs, observed runs, plans by the cost model, and reviews of
launches."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from autotune import api
from autotune.errors import SpecError
from autotune.results.best_known import best_known
from autotune.results.question import Question
from autotune.reviews import review_texts
from autotune.schema.document import IN_QUERY, Document, SequenceLength, Tokens
from autotune.service.http.error_responses import StrictJSONResponse
from autotune.service.http.json_route import JsonRoute
from autotune.service.http.service_state import (
    FilterText,
    Limit,
    Offset,
    Planner,
    Reader,
    TheService,
    Versions,
)
from autotune.service.http.specs import allowed_study, read_body
from autotune.service.routes.response_models import (
    BestAcross,
    ObservedRuns,
    PlanAnswer,
    ReviewAnswer,
    responses,
)
from autotune.service.routes.studies import SPEC_BODY, Metric
from autotune.spec import Outcome

router = APIRouter(tags=["answers"], route_class=JsonRoute)

_DEFAULT = "default: the value used in the measured studies, or a typical value if there are none"


@router.get("/best", responses=responses(model=BestAcross))
async def best(
    service: TheService,
    caller: Reader,
    model: FilterText = "",
    cluster: FilterText = "",
    trainer: FilterText = "",
    runner: FilterText = "",
    num_gpus: Annotated[
        int | None, Query(ge=1, le=1 << 27, description="GPUs of the measured cluster")
    ] = None,
    measured_after: Annotated[
        datetime | None,
        Query(description="only measurements after this time; UTC if no time zone is given"),
    ] = None,
    seq_len: Annotated[
        Annotated[SequenceLength, IN_QUERY] | None,
        Query(description=f"a number, or a number with a unit such as 8Ki; {_DEFAULT}"),
    ] = None,
    global_batch_size: Annotated[int | None, Query(ge=1, le=1 << 27, description=_DEFAULT)] = None,
    metric: Annotated[
        Metric | None, Query(description="rank by this metric; needs model and cluster")
    ] = None,
    stability_weight: Annotated[
        float | None,
        Query(ge=0, le=1, description="rank with this stability weight; needs model and cluster"),
    ] = None,
    top: Limit = 1,
) -> Response:
    """Find the best measured configs of a model across all studies, one row per config, ranked by tokens per second per GPU or by an objective.

    Without a model, the answer has the best config for each model and
    cluster. Simulated results are included only with `runner=simulated`. If you give a model and a
    cluster for which nothing has been measured, the answer contains the configs of the nearest
    workload or, failing that, the cost model's ranking; `source` shows which.
    """

    query = Question(
        model=model,
        cluster=cluster,
        trainer=trainer,
        runner=runner,
        num_gpus=num_gpus,
        measured_after=measured_after,
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        metric=metric,
        stability_weight=stability_weight,
    )
    return StrictJSONResponse(
        await service.run_heavy(caller, lambda: best_known(service.store, query, top=top))
    )


@router.post("/plan", openapi_extra=SPEC_BODY, responses=responses(415, model=PlanAnswer))
async def plan(
    request: Request,
    service: TheService,
    caller: Planner,
    top: Limit = 10,
    clusters: Annotated[
        FilterText,
        Query(
            description="other clusters to compare, separated by commas, for example h100-sxm-8x8,h200-sxm"
        ),
    ] = "",
    tokens: Annotated[
        Annotated[Tokens, IN_QUERY] | None,
        Query(
            description="with clusters: also the cost of training on this many tokens, e.g. 300B or 15T"
        ),
    ] = None,
) -> Response:
    """Rank the feasible configs of a spec by the cost model. Nothing is run or stored.

    With `clusters`, also compare the best config on each of them. A GPU type without a size keeps the number of GPUs in the spec's cluster.
    """

    names = [word.strip() for word in clusters.split(",") if word.strip()]
    if tokens is not None and not names:
        raise SpecError(
            "tokens works only with clusters",
            remedy="add clusters=h100-sxm,h200-sxm",
            field="tokens",
        )
    body, media = await request.body(), request.headers.get("content-type", "")

    def work() -> dict[str, Any]:
        study = allowed_study(
            read_body(body, media), service.options, may_run=caller.allows("run"), only_plans=True
        )
        # no dry runs within a request: they take minutes, and may run the caller's code
        plan_document = api.plan_of(study, top=top, store=service.store, profile=False).to_dict()
        if clusters.strip():
            compared = api.compare_clusters_of(study, names, tokens=tokens, store=service.store)
            plan_document["clusters"] = [choice.to_dict() for choice in compared]
        return plan_document

    return StrictJSONResponse(await service.run_heavy(caller, work))


@router.get("/observed", responses=responses(model=ObservedRuns))
def observed(
    service: TheService,
    caller: Reader,
    id: Annotated[FilterText, Query(description="id of a run, or a prefix of it")] = "",  # noqa: A002
    model: FilterText = "",
    cluster: FilterText = "",
    gpu: FilterText = "",
    trainer: FilterText = "",
    program: FilterText = "",
    outcome: Annotated[Outcome | None, BeforeValidator(str.upper)] = None,
    version: Versions = (),
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    """List runs that people started themselves under `autotune run` or a callback, newest first. They are not trials."""

    document = api.observed_document(
        service.store,
        limit=limit,
        offset=offset,
        id=id,
        model=model,
        cluster=cluster,
        gpu=gpu,
        trainer=trainer,
        program=program,
        outcome=str(outcome or ""),
        version=version,
    )
    return StrictJSONResponse(document)


class ReviewRequest(Document):
    """A launch to review, and values that it does not contain."""

    files: dict[
        Annotated[str, Field(min_length=1, max_length=200)],
        Annotated[str, Field(max_length=1 << 18)],
    ] = Field(
        min_length=1,
        max_length=32,
        description="texts by name: first the launch (script, configuration, manifest or spec), then the files it refers to",
        examples=[
            {"train.sh": "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4"}
        ],
    )
    model: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="catalog name or hub id"
    )
    cluster: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="h100-sxm-1x8, or h100-sxm"
    )
    seq_len: int | None = Field(default=None, ge=1, le=1 << 27)
    batch: int | None = Field(
        default=None, ge=1, le=1 << 27, description="sequences per optimizer step"
    )
    precision: Annotated[str, Field(max_length=20)] | None = None
    config: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="the launch's config, KNOB=VALUE,..."
    )
    measured_s: float | None = Field(
        default=None, gt=0, le=1e9, description="measured seconds per step"
    )
    log: Annotated[str, Field(max_length=1 << 18)] | None = Field(
        default=None, description="the launch's log, instead of measured_s"
    )


@router.post("/review", responses=responses(415, model=ReviewAnswer))
async def review(service: TheService, caller: Planner, launch: ReviewRequest) -> Response:
    """Review a launch without running it: whether it fits, how fast it should be, and which edits make it faster.

    Only the texts in the request are read, not files on the service's machine.
    """

    values = launch.model_dump(exclude={"files"})

    def work() -> dict[str, Any]:
        return review_texts(launch.files, store=service.store, **values).to_dict()

    return StrictJSONResponse(await service.run_heavy(caller, work))
