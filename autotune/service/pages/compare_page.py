"""Studies, or trials of a study, side by side: what differs comes first."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from autotune.errors import SpecError
from autotune.report.side_by_side import side_by_side, study_facts, trial_facts
from autotune.results.answers import trial_of
from autotune.service.http.service_state import TheService
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import Visitor, trial_number
from autotune.spec import config_label

router = APIRouter()

MOST_STUDIES, MOST_TRIALS = 4, 6
"""columns side by side"""
LISTED = 50
"""newest studies that can be chosen from a list"""


@router.get("/compare")
def compare_studies(request: Request, service: TheService, caller: Visitor) -> Response:
    """Studies side by side, and a form to choose them."""
    asked = _distinct([name[:200] for name in request.query_params.getlist("study") if name], MOST_STUDIES, "studies")
    found = [service.views.result(name) for name in asked]
    return render(
        "compare_studies.html",
        caller=caller,
        most=MOST_STUDIES,
        heads=[{"label": f.record.study.name, "url": f"/studies/{f.record.id}"} for f in found],
        chosen=[f.record.id for f in found],
        listed={r.id: r.study.name for r in (*(f.record for f in found), *service.store.studies(limit=LISTED))},
        compared=side_by_side([study_facts(f) for f in found]) if len(found) > 1 else None,
    )


@router.get("/studies/{study_id}/compare")
def compare_trials(study_id: str, request: Request, service: TheService, caller: Visitor) -> Response:
    """Trials of a study side by side. Without numbers: the best and the baseline."""
    words = " ".join(request.query_params.getlist("trial"))
    numbers = _distinct([trial_number(word) for word in re.split(r"[\s,]+", words) if word], MOST_TRIALS, "trials")
    result = service.views.result(study_id)
    chosen = numbers or list(dict.fromkeys(t.number for t in (result.baseline, result.best) if t is not None))
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
        raise SpecError(f"at most {most} {what} can be shown side by side, but {len(found)} were given")
    return found
