"""The plan of a model on a cluster: a form of four fields, the ranked configs and the map of the
feasible set. Nothing is stored, nothing is run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import Response

from autotune import api
from autotune.errors import AutotuneError, SpecError
from autotune.ports import StudyRecord
from autotune.results.answers import result_from
from autotune.schema.space_models import usual_space
from autotune.service.http.service_state import TheService
from autotune.service.http.specs import confined
from autotune.service.pages.rendering import render
from autotune.service.pages.submit_page import count_of, problems_of
from autotune.spec import Study, StudyStatus, catalog
from autotune.trainers import trainer

router = APIRouter()

ASKED = ("model", "cluster", "seq_len", "batch", "trainer")
EXAMPLE = {
    "model": "llama-8b",
    "cluster": "h100-sxm-4x8",
    "seq_len": "8192",
    "batch": "512",
    "trainer": "torchtitan",
}
SHOWN = 10
"""configs of the table"""


@router.get("/plan")
async def plan(request: Request, service: TheService) -> Response:
    """The form with an example, or the plan that its fields ask for."""
    asks = any(name in request.query_params for name in ASKED)
    caller = await service.gate.admit(request, "read", changes=asks)
    asked = (
        {name: request.query_params.get(name, "").strip()[:200] for name in ASKED}
        if asks
        else EXAMPLE
    )
    if not asks:
        return render("plan.html", caller=caller, asked=asked, plan=None, problems=[], map="")

    def work() -> dict[str, Any]:
        study = confined(document_of(asked), service.options, only_plans=True)
        found = api.plan_of(study, top=SHOWN, store=service.store, profile=False)
        base = found.baseline
        fits = base is not None and float(base.estimate.oom_probability) <= 0.5
        return {
            "plan": found.to_dict(),
            "model": study.workload.model,
            "base": float(base.estimate.tokens_per_s) if base is not None and fits else None,
            "map": Markup(_map(study)),
        }

    try:
        shown: dict[str, Any] = {"problems": [], **(await service.plan(caller, work))}
    except AutotuneError as error:
        shown = {"problems": problems_of(error), "plan": None, "map": ""}
    return render("plan.html", caller=caller, asked=asked, **shown)


def document_of(asked: dict[str, str]) -> dict[str, Any]:
    """The spec that the fields ask for. Raises `SpecError` for what is missing or no number."""

    if missing := [name for name in ("model", "cluster", "seq_len", "batch") if not asked[name]]:
        raise SpecError(f"a plan needs model, cluster, seq_len and batch; missing: {', '.join(missing)}", field=missing[0])  # fmt: skip
    found: dict[str, Any] = {}
    mistakes: list[AutotuneError] = []
    for name, read in (
        ("seq_len", lambda: count_of(asked["seq_len"], "tokens per sequence")),
        ("batch", lambda: count_of(asked["batch"], "sequences per step")),
        ("model", lambda: catalog.model(asked["model"])),
        ("cluster", lambda: catalog.cluster(asked["cluster"])),
        ("trainer", lambda: trainer(asked["trainer"]) if asked["trainer"] else None),
    ):
        try:
            found[name] = read()
        except AutotuneError as error:
            mistakes.append(error)
    if mistakes:
        mistakes[0].others = tuple(mistakes[1:])
        raise mistakes[0]
    return {
        "model": asked["model"],
        "cluster": asked["cluster"],
        "workload": {"seq_len": found["seq_len"], "global_batch_size": found["batch"]},
        "runner": "simulated",
        **({"trainer": asked["trainer"]} if asked["trainer"] else {}),
        "space": usual_space(asked),
    }


def _map(study: Study) -> str:
    """The map of the feasible set, of a study without trials; empty where it cannot be drawn."""
    from autotune.report.figures import FIGURES
    from autotune.report.figures.figure_html import figure_html
    from autotune.report.figures.source import FigureSource

    now = datetime.now(UTC)
    record = StudyRecord(
        id="plan", study=study, spec={}, status=StudyStatus.QUEUED, created_at=now, updated_at=now
    )
    figure = FIGURES["feasible_map"](FigureSource(result=result_from(record, ())))
    return "" if figure is None else figure_html(figure)
