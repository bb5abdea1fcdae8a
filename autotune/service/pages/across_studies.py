"""Pages across studies: the list of studies with filters, the best configs of all history, and
studies or trials of a study side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from autotune import api
from autotune.errors import SpecError
from autotune.report.comparison import side_by_side, study_facts, trial_facts
from autotune.results.answers import is_left, trial_of
from autotune.results.best_known import best_known
from autotune.results.question import Question
from autotune.service.http.service_state import TheService
from autotune.service.pages.page_requests import REFRESH_S, Visitor, message_in, parse_trial_number
from autotune.service.pages.rendering import render
from autotune.spec import StudyStatus, config_label
from autotune.spec.checks import member_of
from autotune.spec.study import METRICS

router = APIRouter()

PAGE = 50
"""studies per page of the list"""
MAX_CONFIGS = 50
"""maximum number of configs on the page of the best configs"""
PERIODS_DAYS: Mapping[str, str] = {
    "": "at any time",
    "1": "today",
    "7": "in the last week",
    "30": "in the last 30 days",
    "365": "in the last year",
}
"""choices of the filter by time, in days"""
MAX_DAYS = 36_500
"""largest value of the filter by time, days"""
MAX_STUDIES, MAX_TRIALS = 4, 6
"""maximum number of studies and of trials to show side by side"""
MAX_LISTED = 50
"""number of newest studies in the list to choose from"""


@router.get("/")
async def home(request: Request) -> Response:
    """Redirect to the list of studies."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/studies")
def studies(request: Request, service: TheService, caller: Visitor) -> Response:
    """List studies, newest first."""
    filters_given = {
        name: request.query_params.get(name, "")[:200]
        for name in ("status", "model", "cluster", "owner", "tag")
    }
    status = (
        member_of("status", filters_given["status"], StudyStatus)
        if filters_given["status"]
        else None
    )
    number = request.query_params.get("page", "1")
    page = int(number) if number.isascii() and number.isdigit() and 0 < len(number) < 9 else 1
    exact_filters: dict[str, Any] = {
        name: value for name, value in filters_given.items() if name != "status"
    }
    records = service.store.studies(
        status=status, limit=PAGE + 1, offset=PAGE * max(0, page - 1), **exact_filters
    )
    current = (api.with_current_verdict(service.store, record) for record in records[:PAGE])
    return render(
        "studies.html",
        said=message_in(request),
        caller=caller,
        asked=filters_given,
        wanted=status,
        page=page,
        statuses=list(StudyStatus),
        refresh=REFRESH_S,
        studies=[
            api.study_document(record, is_left=is_left(service.store, record)) for record in current
        ],
        more=len(records) > PAGE,
    )


@router.get("/best")
async def best(request: Request, service: TheService, caller: Visitor) -> Response:
    """Show the best configs across all history. If nothing was measured, show the nearest known
    workload or the cost model's ranking, and say so."""
    names = ("model", "cluster", "num_gpus", "trainer", "runner", "days", "metric")
    parameters = {name: request.query_params.get(name, "")[:200] for name in names}
    days = _parse_number(parameters, "days")
    query = Question(
        model=parameters["model"],
        cluster=parameters["cluster"],
        trainer=parameters["trainer"],
        runner=parameters["runner"],
        metric=parameters["metric"],
        num_gpus=_parse_number(parameters, "num_gpus"),
        measured_after=datetime.now(UTC) - timedelta(days=min(days, MAX_DAYS)) if days else None,
    )
    ranking = await service.run_heavy(
        caller, lambda: best_known(service.store, query, top=MAX_CONFIGS)
    )
    return render(
        "best.html",
        caller=caller,
        asked=parameters,
        metrics=METRICS,
        periods=PERIODS_DAYS,
        **ranking,
    )


def _parse_number(parameters: dict[str, str], name: str) -> int | None:
    """Parse a whole number from a query parameter; None for an empty text. Raises `SpecError`."""
    text = parameters[name].strip()
    if text and not (text.isascii() and text.isdigit() and int(text[:10]) > 0 and len(text) < 10):
        raise SpecError(
            f"{name} must be a whole number, 1 or more, but is {text[:40]!r}", field=name
        )
    return int(text) if text else None


@router.get("/compare")
def compare_studies(request: Request, service: TheService, caller: Visitor) -> Response:
    """Show studies side by side, with a form to choose them."""
    names = _distinct(
        [name[:200] for name in request.query_params.getlist("study") if name],
        MAX_STUDIES,
        "studies",
    )
    results = [service.views.result(name) for name in names]
    return render(
        "compare_studies.html",
        caller=caller,
        most=MAX_STUDIES,
        heads=[
            {"label": result.record.study.name, "url": f"/studies/{result.record.id}"}
            for result in results
        ],
        chosen=[result.record.id for result in results],
        listed={
            r.id: r.study.name
            for r in (
                *(result.record for result in results),
                *service.store.studies(limit=MAX_LISTED),
            )
        },
        compared=side_by_side([study_facts(result) for result in results])
        if len(results) > 1
        else None,
    )


@router.get("/studies/{study_id}/compare")
def compare_trials(
    study_id: str, request: Request, service: TheService, caller: Visitor
) -> Response:
    """Show trials of a study side by side. Without numbers: the best trial and the baseline."""
    words = " ".join(request.query_params.getlist("trial"))
    numbers = _distinct(
        [parse_trial_number(word) for word in re.split(r"[\s,]+", words) if word],
        MAX_TRIALS,
        "trials",
    )
    result = service.views.result(study_id)
    chosen = numbers or list(
        dict.fromkeys(t.number for t in (result.baseline, result.best) if t is not None)
    )
    trials = [trial_of(result, number) for number in chosen]
    url = f"/studies/{result.record.id}"
    return render(
        "compare_trials.html",
        caller=caller,
        study={"id": result.record.id, "name": result.record.study.name},
        heads=[{"label": f"trial {t.number}", "url": f"{url}/trials/{t.number}"} for t in trials],
        chosen=chosen,
        labels=[config_label(t.config) for t in trials],
        compared=side_by_side([trial_facts(t) for t in trials]) if len(trials) > 1 else None,
    )


def _distinct(values: list[Any], most: int, noun: str) -> list[Any]:
    """Return the values without duplicates. Raises `SpecError` if there are too many to show side
    by side."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > most:
        raise SpecError(
            f"at most {most} {noun} can be shown side by side, but {len(distinct)} were given"
        )
    return distinct
