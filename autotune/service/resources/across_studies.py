"""Routes beyond one study: the best configs across all studies, and plans by the cost model."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from autotune.service.error_responses import StrictJSONResponse
from autotune.service.resources.studies import SPEC_BODY, Metric
from autotune.service.response_models import BestAcross, PlanAnswer, responses
from autotune.service.service_state import Limit, Planner, Reader, TheService, Word
from autotune.service.specs import confined, read_body

router = APIRouter(tags=["answers"])

Size = Annotated[
    int | None, Query(ge=1, le=1 << 27, description="default: as in the measured studies, otherwise a typical value")
]


@router.get("/best", responses=responses(model=BestAcross))
async def best(
    service: TheService,
    caller: Reader,
    model: Word = "",
    cluster: Word = "",
    trainer: Word = "",
    runner: Word = "",
    seq_len: Size = None,
    global_batch_size: Size = None,
    metric: Annotated[Metric | None, Query(description="rank by this metric; needs model and cluster")] = None,
    stability_weight: Annotated[
        float | None, Query(ge=0, le=1, description="rank with this weight of stability; needs model and cluster")
    ] = None,
    top: Limit = 1,
) -> Response:
    """The best measured configs of a model across all studies, one row per config, ranked by tokens per second and GPU or by an objective.

    Without a model: the best config of each model and cluster. Simulated results are included only with `runner=simulated`. With model and
    cluster, where nothing was measured: the configs of the nearest workload, otherwise the cost model's ranking; `source` says which.
    """
    from autotune.results.best_known import best_known
    from autotune.results.question import Asked

    asked = Asked(
        model=model,
        cluster=cluster,
        trainer=trainer,
        runner=runner,
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        metric=str(metric or ""),
        stability_weight=stability_weight,
    )
    return StrictJSONResponse(await service.work(lambda: best_known(service.store, asked, top=top)))


@router.post("/plan", openapi_extra=SPEC_BODY, responses=responses(415, model=PlanAnswer))
async def plan(request: Request, service: TheService, caller: Planner, top: Limit = 10) -> Response:
    """The feasible configs of a spec, ranked by the cost model. Runs nothing and stores nothing."""
    from autotune import api

    body, media = await request.body(), request.headers.get("content-type", "")

    def work() -> dict[str, Any]:
        study = confined(read_body(body, media), service.options)
        return api.plan_of(study, top=top, store=service.store).to_dict()

    return StrictJSONResponse(await service.work(work))
