"""A visit: who asks for a page, and what they sent with its form. Forms carry the form token
(`autotune.service.http.access`).

Flash messages: what an action did, said on the page that follows it. The address names the message;
its text stands only here, so that a link of somebody else's cannot put words into a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from starlette.responses import RedirectResponse

from autotune.errors import SpecError
from autotune.service.http.access import Caller
from autotune.service.http.service_state import TheService
from autotune.service.routes.studies import MAX_TRIAL

REFRESH_S = 5
"""time after which a page without scripts loads itself again"""


def _admitted(scope: str, *, changes: bool = False) -> Any:
    async def admit(request: Request, service: TheService) -> Caller:
        return await service.gate.admit(request, scope, changes=changes)

    return Depends(admit)


Visitor = Annotated[Caller, _admitted("read")]
Writer = Annotated[Caller, _admitted("submit")]
"""of scope submit, who only looks at a form"""
Changer = Annotated[Caller, _admitted("submit", changes=True)]
"""of scope submit, who sends a form"""


async def own_form(request: Request, service: TheService, caller: Changer) -> dict[str, str]:
    """The fields of a form that came from this service's own page."""
    form = await form_of(request)
    service.gate.check_form(caller, form.get("form_token", ""))
    return form


OwnForm = Annotated[dict[str, str], Depends(own_form)]


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form. Raises `SpecError` when the request body is not a form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise SpecError(
            "this address only accepts the form from its own page",
            remedy="use the button on the page",
        )
    try:
        fields = parse_qs((await request.body()).decode("ascii"), max_num_fields=20)
    except ValueError:
        raise SpecError(
            "the request is not a valid form", remedy="use the button on the page"
        ) from None
    return {name: values[0] for name, values in fields.items()}


def trial_number(text: str) -> int:
    """The number of a trial that was typed. Raises `SpecError`."""
    if not (text.isascii() and text.isdigit() and len(text) < len(str(MAX_TRIAL))):
        raise SpecError(
            f"a trial number must be a whole number, 0 or more, but is {text[:40]!r}", field="trial"
        )
    return int(text)


MESSAGES: Mapping[str, str] = {
    "pause": "Pausing: running trials finish, and no new ones start.",
    "resume": "The study continues.",
    "stop": "Stopping: running trials finish, then the best config is reported.",
    "cancel": "Cancelling: running trials are killed.",
    "submit": "The study is submitted.",
    "note": "The note is added.",
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
