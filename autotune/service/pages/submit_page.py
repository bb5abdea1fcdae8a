"""The form for a new study: first the review of a pasted launch, which a button turns into a spec;
then the spec as YAML, checked while it is typed, with a preview of the plan.

Checks and previews run in the queue of CPU-heavy requests, where callers take turns, with the same
limits as submissions. Without scripts, the button `Check` shows the same. A form contains a unique
number, so that sending it twice creates one study.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from autotune import api
from autotune.errors import AutotuneError, SpecError
from autotune.service.http.access import Caller
from autotune.service.http.error_responses import RefusalError, status_of
from autotune.service.http.service_state import ServiceState, TheService
from autotune.service.http.specs import YAML, allowed_study, read_body
from autotune.service.pages.page_requests import Changer, OwnForm, Writer, redirect_after
from autotune.service.pages.rendering import render
from autotune.service.routes.studies import submit_study
from autotune.spec import Study
from autotune.spec.texts.secrets import masked

router = APIRouter()

LAUNCH = ("launch", "model", "cluster", "seq_len", "batch", "precision", "config")
"""fields of the form that reviews a launch"""
MAX_COUNT = 1 << 27
"""largest sequence length in tokens, and largest batch in sequences"""
MAX_PREVIEWED = 5
"""maximum number of configs of the plan in a preview"""
STARTER = """\
name: my-first-study
model: gpt2-medium             # a name from `autotune models`
cluster: h100-sxm-1x8          # GPU-NODESxGPUS, or `local`: this service's machine
workload:
  seq_len: 1024                # tokens
  global_batch_size: 512       # sequences
space: dense-single-node       # a name from `autotune spaces`, or knobs with their values
budget:
  max_trials: 12
runner: simulated              # simulates; use `ray` or `local` for real trials
"""


@router.get("/submit")
def form(request: Request, service: TheService, caller: Writer) -> Response:
    """Show the form, empty or with the spec of the study given by `from`."""
    text, source = STARTER, request.query_params.get("from", "")[:200]
    if source:
        text = spec_text(masked(service.store.study(source).spec))
    return render("submit.html", caller=caller, **(_form_values(text) | {"source": source}))


@router.post("/submit/preview")
async def preview(service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Show the form with the errors in the spec or with its plan. Nothing is stored."""
    text = form.get("spec", "")

    def work() -> dict[str, Any]:
        study = allowed_study(_read(text), service.options, may_run=caller.allows("run"))
        # no dry runs within a request: they take minutes, and may run the caller's code
        plan = api.plan_of(study, top=MAX_PREVIEWED, store=service.store, profile=False)
        return {"study": _summary(study), "plan": plan.to_dict()}

    preview, problems = await _result_or_problems(service, caller, work)
    values = _form_values(text, form.get("number", "")) | {"preview": preview, "problems": problems}
    return render("submit.html", caller=caller, **values)


@router.post("/submit/review")
async def review(service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Show the form with the review of a launch; if requested, also with its spec. Nothing is
    stored, and no file on this machine is read."""
    launch = {name: form.get(name, "").strip() for name in LAUNCH}
    launch["launch"] = form.get("launch", "").replace("\r\n", "\n")
    text, number = form.get("spec", STARTER), form.get("number", "")

    def work() -> dict[str, Any]:
        from autotune.reviews import lines_of, review_texts
        from autotune.reviews.target import name_for

        reviewed = review_texts(
            {name_for(launch["launch"]): launch["launch"]},
            model=launch["model"] or None,
            cluster=launch["cluster"] or None,
            seq_len=parse_count(launch["seq_len"], "tokens per sequence"),
            batch=parse_count(launch["batch"], "sequences per step"),
            precision=launch["precision"] or None,
            config=launch["config"] or None,
            store=service.store,
        )
        trainer = _trainer_of(reviewed.spec)
        return {
            "lines": lines_of(reviewed, most=None),
            "spec": reviewed.spec,
            "fits": reviewed.fits,
            "elsewhere": "" if trainer in service.options.trainers else trainer,
        }

    review, problems = await _result_or_problems(service, caller, work)
    if review is not None and form.get("tune"):
        text = review["spec"]
    values = _form_values(text, number) | {
        "reviewed": review,
        "review_problems": problems,
        "launch": launch,
        "is_drafted": bool(form.get("tune")),
    }
    return render("submit.html", caller=caller, **values)


@router.post("/submit")
async def submit(service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Store the study and redirect to its page, or show the form again with the errors."""
    text, number = form.get("spec", ""), form.get("number", "")
    # an edited spec is another study, even if the user went back in the browser to edit it
    key = hashlib.sha256(f"{number} {text}".encode()).hexdigest() if number else None
    try:
        record = await service.run_submission(
            caller, lambda: submit_study(service, caller, _read(text), key)
        )
    except AutotuneError as error:
        values = _form_values(text, number) | {"problems": problems_of(error)}
        return render("submit.html", status=status_of(error), caller=caller, **values)
    except RefusalError as refusal:
        values = _form_values(text, number) | {"problems": [_refusal_problem(refusal)]}
        return render("submit.html", status=refusal.status, caller=caller, **values)
    service.wake_supervisor()
    return redirect_after(f"/studies/{record.id}", "submit")


async def _result_or_problems(
    service: ServiceState, caller: Caller, work: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the result of `work`, or the errors in the user's input. Raises `RefusalError`
    (429)."""
    try:
        return await service.run_heavy(caller, work), []
    except AutotuneError as error:
        return None, problems_of(error)
    except RefusalError as refusal:
        if refusal.status == 429:
            raise
        return None, [_refusal_problem(refusal)]


def _trainer_of(text: str) -> str:
    """Return the trainer in a spec's text."""
    import yaml

    entry = (yaml.safe_load(text) or {}).get("trainer", "")
    return str(entry.get("kind", "") if isinstance(entry, dict) else entry)


def spec_text(spec: Any) -> str:
    """Return a spec as YAML. Raises `SpecError` for a study that was submitted from Python without
    a spec."""
    import yaml

    if not spec:
        raise SpecError(
            "copying needs a spec, but this study was submitted from Python without a spec",
            remedy="write a new spec",
        )
    return yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True, width=100)


def problems_of(error: AutotuneError) -> list[dict[str, Any]]:
    """Return the mistakes in an error, ordered by line, each with its position in the text and the
    lines around it, if known."""
    return [
        {
            "message": mistake.message,
            "field": mistake.field,
            "remedy": mistake.remedy,
            "line": mistake.place.line if mistake.place else None,
            "column": mistake.place.column if mistake.place else None,
            "excerpt": mistake.place.excerpt if mistake.place else "",
        }
        for mistake in error.by_line()
    ]


def _refusal_problem(refusal: RefusalError) -> dict[str, Any]:
    no_place = {"line": None, "column": None, "excerpt": ""}
    return {
        "message": refusal.message,
        "field": refusal.field,
        "remedy": refusal.remedy,
        **no_place,
    }


def _read(text: str) -> dict[str, Any]:
    return read_body(text.replace("\r\n", "\n").encode("utf-8", "replace"), YAML)


def _form_values(text: str, number: str = "") -> dict[str, Any]:
    """Return the values of a form that was not checked yet."""
    return {
        "text": text,
        "number": number or secrets.token_hex(16),
        "source": "",
        "problems": [],
        "preview": None,
        "launch": dict.fromkeys(LAUNCH, ""),
        "reviewed": None,
        "review_problems": [],
        "is_drafted": False,
    }


def parse_count(text: str, name: str) -> int | None:
    """Parse a whole number from a form; None for an empty text. Raises `SpecError`."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= MAX_COUNT):
        raise SpecError(
            f"the {name} must be a whole number, 1 or more, but {text[:40]!r} was entered"
        )
    return int(text)


def _summary(study: Study) -> dict[str, Any]:
    workload = study.workload
    return {
        "name": study.name,
        "model": workload.model.name,
        "cluster": workload.cluster.name,
        "searcher": study.searcher,
        "runner": study.runner,
        "max_trials": study.budget.max_trials,
    }
