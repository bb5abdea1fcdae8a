"""The web pages: studies, one study, best configurations, login. Rendered from the templates in `dashboards/web`, without scripts.

The templates escape all text that comes from studies. The page of a running study reloads itself every few seconds. Forms carry the form token
(`autotune.service.access`). A login stores the token in a cookie that no script can read and no other site can send.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from autotune import assets
from autotune.errors import AutotuneError, SpecError
from autotune.report.terminal import format_bytes, format_count, format_duration
from autotune.service.access import COOKIE, LOOPBACK, Caller
from autotune.service.error_responses import STATUS, RefusalError
from autotune.service.resources.studies import Action, acted
from autotune.service.service_state import ServiceState, service_state_of
from autotune.spec import ParallelConfig, StudyStatus, config_label
from autotune.spec.checks import one_of
from autotune.spec.study import METRICS

if TYPE_CHECKING:
    from jinja2 import Environment

router = APIRouter()

PAGE = 50
"""studies on a page of the list, and configs on the page of best ones"""
SHOWN_EVENTS = 40
"""events of a study's history that its page shows, the newest first"""
REFRESH_S = 5
COOKIE_S = 30 * 86400
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'"

Handler = Callable[[Request], Awaitable[Response]]


def page(handler: Handler) -> Handler:
    """Shows errors as pages, and redirects callers without a token to the login."""

    @wraps(handler)
    async def shown(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusalError as error:
            if error.status == 401:
                back = request.url.path if request.method == "GET" else "/studies"
                return RedirectResponse(f"/login?next={quote(back)}", status_code=303)
            return _render("error.html", status=error.status, error=error)
        except AutotuneError as error:
            status = next(status for kind, status in STATUS if isinstance(error, kind))
            return _render("error.html", status=status, error=error)

    return shown


@router.get("/")
async def home(request: Request) -> Response:
    """The list of studies."""
    return RedirectResponse("/studies", status_code=303)


@router.get("/static/style.css")
async def style(request: Request) -> Response:
    """The style sheet."""
    return Response(_style(), media_type="text/css", headers={"Cache-Control": "max-age=3600"})


@router.get("/studies")
@page
async def studies(request: Request) -> Response:
    """Studies, newest first."""
    service, caller = await _visitor(request)
    asked = {name: request.query_params.get(name, "")[:200] for name in ("status", "model", "cluster", "owner")}
    status = StudyStatus(one_of("status", asked["status"], list(StudyStatus))) if asked["status"] else None
    number = request.query_params.get("page", "1")
    at = int(number) if number.isascii() and number.isdigit() and 0 < len(number) < 9 else 1
    filters: dict[str, Any] = {name: value for name, value in asked.items() if name != "status"}

    def load() -> dict[str, Any]:
        from autotune import api

        found = service.store.studies(status=status, limit=PAGE + 1, offset=PAGE * max(0, at - 1), **filters)
        return {"studies": [api.study_document(record) for record in found[:PAGE]], "more": len(found) > PAGE}

    found = await run_in_threadpool(load)
    return _render(
        "studies.html", caller=caller, asked=asked, page=at, statuses=list(StudyStatus), refresh=REFRESH_S, **found
    )


@router.get("/studies/{study_id}")
@page
async def study(request: Request) -> Response:
    """One study: best config, trials, newest events, and buttons for the actions that are possible now."""
    service, caller = await _visitor(request)
    study_id = request.path_params["study_id"]

    def load() -> dict[str, Any]:
        from autotune import api

        result = api.result_of(service.store, study_id)
        document = api.document(result)
        mine = caller.allows("admin") or (caller.allows("submit") and result.record.owner == caller.owner)
        status = result.record.status
        actions = [] if status.is_terminal or not mine else _possible_actions(status)
        events = service.store.events(result.record.id, limit=SHOWN_EVENTS, newest=True)
        return {
            "document": document,
            "study": document["study"],
            "trials": [api.trial_document(trial) for trial in result.trials],
            "actions": actions,
            "events": [event.to_dict() for event in reversed(events)],
            "refresh": 0 if status.is_terminal else REFRESH_S,
        }

    return _render("study.html", caller=caller, **(await run_in_threadpool(load)))


@router.get("/studies/{study_id}/report")
@page
async def report(request: Request) -> Response:
    """The study's report, with figures."""
    service, _ = await _visitor(request)

    def load() -> str:
        from autotune import api
        from autotune.report import html_report

        result = api.result_of(service.store, request.path_params["study_id"])
        return html_report(result.record, result.trials)

    return HTMLResponse(await run_in_threadpool(load), headers={"Content-Security-Policy": REPORT_POLICY})


@router.get("/best")
@page
async def best(request: Request) -> Response:
    """The best configs across all history. Where nothing was measured, it shows the nearest known workload or the cost model's ranking, and says so."""
    from autotune.results.best_known import best_known
    from autotune.results.question import Asked

    service, caller = await _visitor(request)
    names = ("model", "cluster", "trainer", "runner", "metric")
    asked: dict[str, Any] = {name: request.query_params.get(name, "")[:200] for name in names}
    answer = await service.work(lambda: best_known(service.store, Asked(**asked), top=PAGE))
    return _render("best.html", caller=caller, asked=asked, metrics=METRICS, **answer)


@router.post("/studies/{study_id}/act")
@page
async def act(request: Request) -> Response:
    """Does what a button on the study's page asks for."""
    service = service_state_of(request)
    caller = await service.gate.admit(request, "submit", changes=True)
    form = await _form(request)
    service.gate.check_form(caller, form.get("form_token", ""))
    action = one_of("action", form.get("action", ""), [str(a) for a in Action])
    record = await run_in_threadpool(acted, service, caller, request.path_params["study_id"], action)
    return RedirectResponse(f"/studies/{record.id}", status_code=303)


@router.get("/login")
async def login_page(request: Request) -> Response:
    """The login form."""
    return _render("login.html", next=_inside(request.query_params.get("next", "")), wrong=False)


@router.post("/login")
@page
async def login(request: Request) -> Response:
    """Stores a valid token in the cookie."""
    service = service_state_of(request)
    service.gate.check_site(request)
    form = await _form(request)
    token = await service.gate.check_token(request, form.get("token", "").strip())
    if token is None:
        return _render("login.html", status=401, next=_inside(form.get("next", "")), wrong=True)
    await run_in_threadpool(service.store.record_audit, token.owner, "login", token.id)
    answer = RedirectResponse(_inside(form.get("next", "")), status_code=303)
    secure = request.url.scheme == "https" or service.options.public_url.startswith("https:")
    answer.set_cookie(
        COOKIE, form["token"].strip(), max_age=COOKIE_S, httponly=True, samesite="strict", secure=secure, path="/"
    )
    return answer


@router.post("/logout")
@page
async def logout(request: Request) -> Response:
    """Deletes the cookie."""
    service_state_of(request).gate.check_site(request)
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


async def _visitor(request: Request) -> tuple[ServiceState, Caller]:
    service = service_state_of(request)
    return service, await service.gate.admit(request, "read")


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form. Raises `SpecError` when the request body is not a form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise SpecError("this address accepts only the form of its page", remedy="use the button on the page")
    try:
        fields = parse_qs((await request.body()).decode("ascii"), max_num_fields=20)
    except ValueError:
        raise SpecError("the request is not a valid form", remedy="use the button on the page") from None
    return {name: values[0] for name, values in fields.items()}


def _inside(path: str) -> str:
    """`path` if it is a path of this service, otherwise the list of studies: a login must not redirect to another site."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if plain and len(path) < 300 else "/studies"


def _possible_actions(status: StudyStatus) -> list[str]:
    paused = status is StudyStatus.PAUSED
    first = ["resume"] if paused else ["pause"] if status is not StudyStatus.STOPPING else []
    return [*first, *(["stop"] if status is not StudyStatus.STOPPING else []), "cancel"]


@lru_cache(maxsize=1)
def _style() -> str:
    return (assets.dashboards() / "web" / "style.css").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(assets.dashboards() / "web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": format_count,
        "bytes": format_bytes,
        "duration": format_duration,
        "config": lambda config: config_label(ParallelConfig.from_dict(config)),
        "sentence": lambda text: text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else "."),
        "moment": lambda text: str(text or "")[:19].replace("T", " "),
    }
    environment.globals["style_mark"] = hashlib.sha256(_style().encode()).hexdigest()[:12]
    environment.globals["loopback"] = LOOPBACK
    return environment


def _render(template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    defaults: dict[str, Any] = {"caller": None, "refresh": 0}
    return HTMLResponse(_environment().get_template(template).render(defaults | values), status_code=status)
