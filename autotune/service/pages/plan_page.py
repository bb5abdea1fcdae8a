"""The plan of a model on a cluster: a form with five fields, the ranked configs and the map of the
feasible set. Nothing is stored or run."""

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
from autotune.service.http.specs import allowed_study
from autotune.service.pages.rendering import render
from autotune.service.pages.submit_page import parse_count, problems_of
from autotune.spec import Study, StudyStatus, catalog
from autotune.trainers import trainer

router = APIRouter()

FIELDS = ("model", "cluster", "seq_len", "batch", "trainer")
"""fields of the form"""
EXAMPLE = {
    "model": "llama-8b",
    "cluster": "h100-sxm-4x8",
    "seq_len": "8192",
    "batch": "512",
    "trainer": "torchtitan",
}
"""values of the form before it is used"""
MAX_CONFIGS = 10
"""maximum number of configs in the table"""


@router.get("/plan")
async def plan(request: Request, service: TheService) -> Response:
    """Show the form with an example, or the plan for the values of its fields."""
    is_filled_in = any(name in request.query_params for name in FIELDS)
    caller = await service.gate.admit(request, "read", changes=is_filled_in)
    values = (
        {name: request.query_params.get(name, "").strip()[:200] for name in FIELDS}
        if is_filled_in
        else EXAMPLE
    )
    if not is_filled_in:
        return render("plan.html", caller=caller, asked=values, plan=None, problems=[], map="")

    def work() -> dict[str, Any]:
        study = allowed_study(document_of(values), service.options, only_plans=True)
        ranking = api.plan_of(study, top=MAX_CONFIGS, store=service.store, profile=False)
        baseline = ranking.baseline
        baseline_fits = baseline is not None and float(baseline.estimate.oom_probability) <= 0.5
        return {
            "plan": ranking.to_dict(),
            "model": study.workload.model,
            "base": float(baseline.estimate.tokens_per_s)
            if baseline is not None and baseline_fits
            else None,
            "map": Markup(_map(study)),
        }

    try:
        shown: dict[str, Any] = {"problems": [], **(await service.run_heavy(caller, work))}
    except AutotuneError as error:
        shown = {"problems": problems_of(error), "plan": None, "map": ""}
    return render("plan.html", caller=caller, asked=values, **shown)


def document_of(values: dict[str, str]) -> dict[str, Any]:
    """Return the spec for the fields' values. Raises `SpecError` for missing or invalid values."""

    if missing := [name for name in ("model", "cluster", "seq_len", "batch") if not values[name]]:
        raise SpecError(f"a plan needs model, cluster, seq_len and batch; missing: {', '.join(missing)}", field=missing[0])  # fmt: skip
    parsed: dict[str, Any] = {}
    mistakes: list[AutotuneError] = []
    for name, parse in (
        ("seq_len", lambda: parse_count(values["seq_len"], "tokens per sequence")),
        ("batch", lambda: parse_count(values["batch"], "sequences per step")),
        ("model", lambda: catalog.model(values["model"])),
        ("cluster", lambda: catalog.cluster(values["cluster"])),
        ("trainer", lambda: trainer(values["trainer"]) if values["trainer"] else None),
    ):
        try:
            parsed[name] = parse()
        except AutotuneError as error:
            mistakes.append(error)
    if mistakes:
        mistakes[0].others = tuple(mistakes[1:])
        raise mistakes[0]
    return {
        "model": values["model"],
        "cluster": values["cluster"],
        "workload": {"seq_len": parsed["seq_len"], "global_batch_size": parsed["batch"]},
        "runner": "simulated",
        **({"trainer": values["trainer"]} if values["trainer"] else {}),
        "space": usual_space(values),
    }


def _map(study: Study) -> str:
    """Return the map of the feasible set for a study without trials; empty if it cannot be
    drawn."""
    from autotune.report.figures import FIGURES
    from autotune.report.figures.figure_html import figure_html
    from autotune.report.figures.source import FigureSource

    now = datetime.now(UTC)
    record = StudyRecord(
        id="plan", study=study, spec={}, status=StudyStatus.QUEUED, created_at=now, updated_at=now
    )
    figure = FIGURES["feasible_map"](FigureSource(result=result_from(record, ())))
    return "" if figure is None else figure_html(figure)
