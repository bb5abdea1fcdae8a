"""A study's configs in another order: by another metric, with another weight of stability, or those that no other config beats in everything."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from autotune import api
from autotune.errors import SpecError
from autotune.report.reward_tables import cost_label
from autotune.service.http.service_state import TheService
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import Visitor
from autotune.spec.study import METRICS

router = APIRouter()

SHOWN = 50
"""configs on the page"""


@router.get("/studies/{study_id}/ranking")
async def ranking(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """The configs in the order that was asked for. Nothing is run again."""
    asked = {name: request.query_params.get(name, "")[:40] for name in ("metric", "stability_weight", "pareto")}

    def load() -> dict[str, Any]:
        return api.ranking_document(
            service.views.result(study_id),
            top=SHOWN,
            pareto=bool(asked["pareto"]),
            metric=asked["metric"] or None,
            stability_weight=_weight(asked["stability_weight"]),
        )

    document = await service.plan(caller, load)
    return render(
        "ranking.html",
        caller=caller,
        asked=asked,
        metrics=METRICS,
        cost=lambda merits: cost_label(merits["cost_of_million_tokens"], merits["cost_unit"]),
        **document,
    )


def _weight(text: str) -> float | None:
    """The weight, from 0 to 1; None where none was given. Raises `SpecError`."""
    if not text:
        return None
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= 1.0:
        raise SpecError(f"the stability weight must be a number from 0 to 1, but is {text!r}", field="stability_weight")
    return weight
