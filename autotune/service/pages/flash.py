"""Flash messages: what an action did, said on the page that follows it. The address names the message; its text stands only here, so that a link of
somebody else's cannot put words into a page."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from starlette.responses import RedirectResponse

MESSAGES: Mapping[str, str] = {
    "pause": "Pause asked for: running trials finish, and no new ones start.",
    "resume": "The study goes on.",
    "stop": "Stop asked for: running trials finish, then the best config is named.",
    "cancel": "Cancel asked for: running trials are killed.",
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
