"""The form for a new study: first the review of a launch that is pasted, of which one button makes
the spec; then the spec as YAML, checked while it is typed, with a preview of the plan.

Checks and previews run in the queue of CPU-heavy requests, where callers take turns, and know the
same limits as a submission. Without scripts the button `Check` shows the same. A form carries a
number of its own: sent twice, it makes one study.
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
from autotune.service.http.specs import YAML, confined, read_body
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import Changer, OwnForm, Writer, done
from autotune.service.routes.studies import submitted
from autotune.spec import Study
from autotune.spec.texts.secrets import masked

router = APIRouter()

LAUNCH = ("launch", "model", "cluster", "seq_len", "batch", "precision", "config")
"""fields of the form that reviews a launch"""
MOST_COUNT = 1 << 27
"""largest length of a sequence, and largest batch"""
PREVIEWED = 5
"""configs of the plan that a preview shows"""
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
    """The form, empty or with the spec of the study that `from` names."""
    text, source = STARTER, request.query_params.get("from", "")[:200]
    if source:
        text = spec_text(masked(service.store.study(source).spec))
    return render("submit.html", caller=caller, **(_blank(text) | {"source": source}))


@router.post("/submit/preview")
async def preview(service: TheService, caller: Changer, form: OwnForm) -> Response:
    """The form again, with the mistakes of the spec or with its plan. Nothing is stored."""
    text = form.get("spec", "")

    def work() -> dict[str, Any]:
        study = confined(_read(text), service.options, may_run=caller.allows("run"))
        # no dry runs within a request: they take minutes, and may run the caller's code
        plan = api.plan_of(study, top=PREVIEWED, store=service.store, profile=False)
        return {"study": _summary(study), "plan": plan.to_dict()}

    found, problems = await _answer(service, caller, work)
    values = _blank(text, form.get("number", "")) | {"preview": found, "problems": problems}
    return render("submit.html", caller=caller, **values)


@router.post("/submit/review")
async def review(service: TheService, caller: Changer, form: OwnForm) -> Response:
    """The form again, with what there is to say of a launch; with its spec, when that is asked for.
    Nothing is stored, and no file of this machine is read."""
    launch = {name: form.get(name, "").strip() for name in LAUNCH}
    launch["launch"] = form.get("launch", "").replace("\r\n", "\n")
    text, number = form.get("spec", STARTER), form.get("number", "")

    def work() -> dict[str, Any]:
        from autotune.reviews import lines_of, review_texts
        from autotune.reviews.target import name_for

        found = review_texts(
            {name_for(launch["launch"]): launch["launch"]},
            model=launch["model"] or None,
            cluster=launch["cluster"] or None,
            seq_len=count_of(launch["seq_len"], "tokens per sequence"),
            batch=count_of(launch["batch"], "sequences per step"),
            precision=launch["precision"] or None,
            config=launch["config"] or None,
            store=service.store,
        )
        trainer = _trainer_of(found.spec)
        return {
            "lines": lines_of(found, most=None),
            "spec": found.spec,
            "fits": found.fits,
            "elsewhere": "" if trainer in service.options.trainers else trainer,
        }

    found, problems = await _answer(service, caller, work)
    if found is not None and form.get("tune"):
        text = found["spec"]
    values = _blank(text, number) | {"reviewed": found, "review_problems": problems}
    values |= {"launch": launch, "is_drafted": bool(form.get("tune"))}
    return render("submit.html", caller=caller, **values)


@router.post("/submit")
async def submit(service: TheService, caller: Changer, form: OwnForm) -> Response:
    """Stores the study and leads to its page, or shows the form again with what is wrong."""
    text, number = form.get("spec", ""), form.get("number", "")
    # another text is another study, also when somebody goes back in the browser and edits it
    key = hashlib.sha256(f"{number} {text}".encode()).hexdigest() if number else None
    try:
        record = await service.submit(caller, lambda: submitted(service, caller, _read(text), key))
    except AutotuneError as error:
        values = _blank(text, number) | {"problems": problems_of(error)}
        return render("submit.html", status=status_of(error), caller=caller, **values)
    except RefusalError as refusal:
        values = _blank(text, number) | {"problems": [_refused(refusal)]}
        return render("submit.html", status=refusal.status, caller=caller, **values)
    service.changed()
    return done(f"/studies/{record.id}", "submit")


async def _answer(
    service: ServiceState, caller: Caller, work: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What `work` finds, or the mistakes in what was typed. Raises `RefusalError` (429)."""
    try:
        return await service.plan(caller, work), []
    except AutotuneError as error:
        return None, problems_of(error)
    except RefusalError as refusal:
        if refusal.status == 429:
            raise
        return None, [_refused(refusal)]


def _trainer_of(text: str) -> str:
    """The trainer that a spec names."""
    import yaml

    entry = (yaml.safe_load(text) or {}).get("trainer", "")
    return str(entry.get("kind", "") if isinstance(entry, dict) else entry)


def spec_text(spec: Any) -> str:
    """The spec as YAML. Raises `SpecError` for a study that was submitted from Python without
    one."""
    import yaml

    if not spec:
        raise SpecError(
            "copying needs a spec, but this study was submitted from Python without a spec",
            remedy="write a new spec",
        )
    return yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True, width=100)


def problems_of(error: AutotuneError) -> list[dict[str, Any]]:
    """The mistakes that the error carries by their lines, each with its place in the text where it
    has one, and the lines around it."""
    return [
        {
            "message": one.message,
            "field": one.field,
            "remedy": one.remedy,
            "line": one.place.line if one.place else None,
            "column": one.place.column if one.place else None,
            "excerpt": one.place.excerpt if one.place else "",
        }
        for one in error.by_line()
    ]


def _refused(refusal: RefusalError) -> dict[str, Any]:
    none = {"line": None, "column": None, "excerpt": ""}
    return {"message": refusal.message, "field": refusal.field, "remedy": refusal.remedy, **none}


def _read(text: str) -> dict[str, Any]:
    return read_body(text.replace("\r\n", "\n").encode("utf-8", "replace"), YAML)


def _blank(text: str, number: str = "") -> dict[str, Any]:
    """The values of a form that nobody has checked."""
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


def count_of(text: str, what: str) -> int | None:
    """A whole number that was typed; None for nothing. Raises `SpecError`."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= MOST_COUNT):
        raise SpecError(
            f"the {what} must be a whole number, 1 or more, but {text[:40]!r} was entered"
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
