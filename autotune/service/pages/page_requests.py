"""Requests of pages: the callers of pages, the fields of forms, and messages about completed
actions.

Forms contain the form token (`autotune.service.http.access`). After an action, the next page shows
a message. The URL only has the message's name, so that links from other sites cannot insert text
into a page.
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
"""seconds after which a page without scripts reloads"""


def _caller_with(scope: str, *, changes: bool = False) -> Any:
    """Return the dependency that admits callers with a scope."""

    async def admit(request: Request, service: TheService) -> Caller:
        return await service.gate.admit(request, scope, changes=changes)

    return Depends(admit)


Visitor = Annotated[Caller, _caller_with("read")]
Writer = Annotated[Caller, _caller_with("submit")]
"""a caller with scope submit who views a form"""
Changer = Annotated[Caller, _caller_with("submit", changes=True)]
"""a caller with scope submit who sends a form"""


async def own_form(request: Request, service: TheService, caller: Changer) -> dict[str, str]:
    """Return the fields of a form that came from this service's own page."""
    form = await read_form(request)
    service.gate.check_form(caller, form.get("form_token", ""))
    return form


OwnForm = Annotated[dict[str, str], Depends(own_form)]


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises `SpecError` if the request body is not a form."""
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


def parse_trial_number(text: str) -> int:
    """Parse a trial number from a form. Raises `SpecError`."""
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
"""messages by the name in the URL"""


def message_in(request: Request) -> str:
    """Return the message for the name in the URL; an empty text without one."""
    return MESSAGES.get(request.query_params.get("done", ""), "")


def redirect_after(path: str, action: str) -> RedirectResponse:
    """Redirect to the page at `path`, which then shows the action's message."""
    return RedirectResponse(f"{path}?done={action}", status_code=303)
