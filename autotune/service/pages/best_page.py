"""The best configurations across all history, with filters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter, Request
from starlette.responses import Response

from autotune.errors import SpecError
from autotune.results.best_known import best_known
from autotune.results.question import Asked
from autotune.service.http.service_state import TheService
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import Visitor
from autotune.spec.study import METRICS

router = APIRouter()

PAGE = 50
"""configs on the page"""
PERIODS_DAYS: Mapping[str, str] = {
    "": "at any time",
    "1": "today",
    "7": "in the last week",
    "30": "in the last 30 days",
    "365": "in the last year",
}
"""choices of the filter by time"""
MOST_DAYS = 36_500


@router.get("/best")
async def best(request: Request, service: TheService, caller: Visitor) -> Response:
    """The best configs across all history. Where nothing was measured, it shows the nearest known workload or the cost model's ranking, and says so."""
    names = ("model", "cluster", "num_gpus", "trainer", "runner", "days", "metric")
    asked = {name: request.query_params.get(name, "")[:200] for name in names}
    days = _number(asked, "days")
    question = Asked(
        model=asked["model"],
        cluster=asked["cluster"],
        trainer=asked["trainer"],
        runner=asked["runner"],
        metric=asked["metric"],
        num_gpus=_number(asked, "num_gpus"),
        measured_after=datetime.now(UTC) - timedelta(days=min(days, MOST_DAYS)) if days else None,
    )
    answer = await service.plan(caller, lambda: best_known(service.store, question, top=PAGE))
    return render("best.html", caller=caller, asked=asked, metrics=METRICS, periods=PERIODS_DAYS, **answer)


def _number(asked: dict[str, str], name: str) -> int | None:
    """The whole number that was asked for; None where nothing was. Raises `SpecError`."""
    text = asked[name].strip()
    if text and not (text.isascii() and text.isdigit() and int(text[:10]) > 0 and len(text) < 10):
        raise SpecError(f"{name} must be a whole number, 1 or more, but is {text[:40]!r}", field=name)
    return int(text) if text else None
