"""A visit: who asks for a page, what they sent with its form, and errors shown as pages. Forms carry the form token (`autotune.service.http.access`).

Flash messages: what an action did, said on the page that follows it. The address names the message; its text stands only here, so that a link of
somebody else's cannot put words into a page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from urllib.parse import parse_qs, quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from autotune.errors import AutotuneError, SpecError
from autotune.service.http.access import Caller
from autotune.service.http.error_responses import RefusalError, status_of
from autotune.service.http.service_state import ServiceState, service_state_of
from autotune.service.pages.rendering import render
from autotune.service.routes.studies import MAX_TRIAL

REFRESH_S = 5
"""time after which a page without scripts loads itself again"""

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
            return _failed(request, error.status, error)
        except AutotuneError as error:
            return _failed(request, status_of(error), error)

    return shown


def _failed(request: Request, status: int, error: Exception) -> Response:
    """The page that shows an error, with the links that its caller may follow."""
    return render("error.html", status=status, error=error, caller=getattr(request.state, "caller", None))


async def visitor(request: Request) -> tuple[ServiceState, Caller]:
    """The service, and the caller with scope read."""
    service = service_state_of(request)
    return service, await service.gate.admit(request, "read")


async def changing(request: Request) -> tuple[ServiceState, Caller, dict[str, str]]:
    """The service, the caller with scope submit, and the fields of a form that came from this service's own page."""
    service = service_state_of(request)
    caller = await service.gate.admit(request, "submit", changes=True)
    form = await form_of(request)
    service.gate.check_form(caller, form.get("form_token", ""))
    return service, caller, form


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form. Raises `SpecError` when the request body is not a form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise SpecError("this address only accepts its page's form", remedy="use the button on the page")
    try:
        fields = parse_qs((await request.body()).decode("ascii"), max_num_fields=20)
    except ValueError:
        raise SpecError("the request is not a valid form", remedy="use the button on the page") from None
    return {name: values[0] for name, values in fields.items()}


def trial_number(text: str) -> int:
    """The number of a trial that was typed. Raises `SpecError`."""
    if not (text.isascii() and text.isdigit() and len(text) < len(str(MAX_TRIAL))):
        raise SpecError(f"a trial number must be a whole number, 0 or more, but is {text[:40]!r}", field="trial")
    return int(text)


MESSAGES: Mapping[str, str] = {
    "pause": "Pausing: running trials finish, and no new ones start.",
    "resume": "The study continues.",
    "stop": "Stopping: running trials finish, then the best config is named.",
    "cancel": "Cancelling: running trials are killed.",
    "submit": "The study is submitted.",
    "note": "The note is written.",
    "unnote": "The note is removed.",
    "tag": "The tags are changed.",
    "delete": "The study is deleted, with its trials and its history.",
}


def said(request: Request) -> str:
    """The message that the address names; empty without one."""
    return MESSAGES.get(request.query_params.get("done", ""), "")


def done(path: str, what: str) -> RedirectResponse:
    """Leads to the page at `path`, which says what was done."""
    return RedirectResponse(f"{path}?done={what}", status_code=303)
