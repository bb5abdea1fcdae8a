"""Pages across studies: the list of studies with filters, the best configurations of all history,
and studies or trials of a study side by side."""

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
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import REFRESH_S, Visitor, said, trial_number
from autotune.spec import StudyStatus, config_label
from autotune.spec.checks import member_of
from autotune.spec.study import METRICS

router = APIRouter()

PAGE = 50
"""studies on a page of the list"""
SHOWN = 50
"""configs on the page of the best"""
PERIODS_DAYS: Mapping[str, str] = {
    "": "at any time",
    "1": "today",
    "7": "in the last week",
    "30": "in the last 30 days",
    "365": "in the last year",
}
"""choices of the filter by time"""
MOST_DAYS = 36_500
MOST_STUDIES, MOST_TRIALS = 4, 6
"""columns side by side"""
LISTED = 50
"""newest studies that can be chosen from a list"""


@router.get("/")
async def home(request: Request) -> Response:
    """The list of studies."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/studies")
def studies(request: Request, service: TheService, caller: Visitor) -> Response:
    """Studies, newest first."""
    asked = {
        name: request.query_params.get(name, "")[:200]
        for name in ("status", "model", "cluster", "owner", "tag")
    }
    status = member_of("status", asked["status"], StudyStatus) if asked["status"] else None
    number = request.query_params.get("page", "1")
    at = int(number) if number.isascii() and number.isdigit() and 0 < len(number) < 9 else 1
    filters: dict[str, Any] = {name: value for name, value in asked.items() if name != "status"}
    found = service.store.studies(
        status=status, limit=PAGE + 1, offset=PAGE * max(0, at - 1), **filters
    )
    judged = (api.with_current_verdict(service.store, record) for record in found[:PAGE])
    return render(
        "studies.html",
        said=said(request),
        caller=caller,
        asked=asked,
        wanted=status,
        page=at,
        statuses=list(StudyStatus),
        refresh=REFRESH_S,
        studies=[
            api.study_document(record, is_left=is_left(service.store, record)) for record in judged
        ],
        more=len(found) > PAGE,
    )


@router.get("/best")
async def best(request: Request, service: TheService, caller: Visitor) -> Response:
    """The best configs across all history. Where nothing was measured, it shows the nearest known
    workload or the cost model's ranking, and says so."""
    names = ("model", "cluster", "num_gpus", "trainer", "runner", "days", "metric")
    asked = {name: request.query_params.get(name, "")[:200] for name in names}
    days = _number(asked, "days")
    question = Question(
        model=asked["model"],
        cluster=asked["cluster"],
        trainer=asked["trainer"],
        runner=asked["runner"],
        metric=asked["metric"],
        num_gpus=_number(asked, "num_gpus"),
        measured_after=datetime.now(UTC) - timedelta(days=min(days, MOST_DAYS)) if days else None,
    )
    answer = await service.plan(caller, lambda: best_known(service.store, question, top=SHOWN))
    return render(
        "best.html", caller=caller, asked=asked, metrics=METRICS, periods=PERIODS_DAYS, **answer
    )


def _number(asked: dict[str, str], name: str) -> int | None:
    """The whole number that was asked for; None where nothing was. Raises `SpecError`."""
    text = asked[name].strip()
    if text and not (text.isascii() and text.isdigit() and int(text[:10]) > 0 and len(text) < 10):
        raise SpecError(
            f"{name} must be a whole number, 1 or more, but is {text[:40]!r}", field=name
        )
    return int(text) if text else None


@router.get("/compare")
def compare_studies(request: Request, service: TheService, caller: Visitor) -> Response:
    """Studies side by side, and a form to choose them."""
    asked = _distinct(
        [name[:200] for name in request.query_params.getlist("study") if name],
        MOST_STUDIES,
        "studies",
    )
    found = [service.views.result(name) for name in asked]
    return render(
        "compare_studies.html",
        caller=caller,
        most=MOST_STUDIES,
        heads=[{"label": f.record.study.name, "url": f"/studies/{f.record.id}"} for f in found],
        chosen=[f.record.id for f in found],
        listed={
            r.id: r.study.name
            for r in (*(f.record for f in found), *service.store.studies(limit=LISTED))
        },
        compared=side_by_side([study_facts(f) for f in found]) if len(found) > 1 else None,
    )


@router.get("/studies/{study_id}/compare")
def compare_trials(
    study_id: str, request: Request, service: TheService, caller: Visitor
) -> Response:
    """Trials of a study side by side. Without numbers: the best and the baseline."""
    words = " ".join(request.query_params.getlist("trial"))
    numbers = _distinct(
        [trial_number(word) for word in re.split(r"[\s,]+", words) if word], MOST_TRIALS, "trials"
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


def _distinct(values: list[Any], most: int, what: str) -> list[Any]:
    """The values, each once. Raises `SpecError` when they are too many to stand side by side."""
    found = list(dict.fromkeys(values))
    if len(found) > most:
        raise SpecError(
            f"at most {most} {what} can be shown side by side, but {len(found)} were given"
        )
    return found
