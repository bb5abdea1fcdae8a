"""Login and logout. A login stores the token in a cookie that scripts cannot read and other sites
cannot send."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from autotune.service.http.access import COOKIE
from autotune.service.http.service_state import TheService
from autotune.service.pages.page_requests import read_form
from autotune.service.pages.rendering import render

router = APIRouter()

COOKIE_S = 30 * 86400
"""lifetime of the cookie, seconds"""


@router.get("/login")
async def login_page(request: Request) -> Response:
    """Return the login form."""
    return render("login.html", next=_local_path(request.query_params.get("next", "")), wrong=False)


@router.post("/login")
async def login(request: Request, service: TheService) -> Response:
    """Store a valid token in the cookie."""
    service.gate.check_site(request)
    form = await read_form(request)
    token = await service.gate.check_token(request, form.get("token", "").strip())
    if token is None:
        return render("login.html", status=401, next=_local_path(form.get("next", "")), wrong=True)
    await run_in_threadpool(service.store.record_audit, token.owner, "login", token.id)
    response = RedirectResponse(_local_path(form.get("next", "")), status_code=303)
    secure = request.url.scheme == "https" or service.options.public_url.startswith("https:")
    response.set_cookie(
        COOKIE,
        form["token"].strip(),
        max_age=COOKIE_S,
        httponly=True,
        samesite="strict",
        secure=secure,
        path="/",
    )
    return response


@router.post("/logout")
async def logout(request: Request, service: TheService) -> Response:
    """Delete the cookie."""
    service.gate.check_site(request)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, path="/")
    return response


def _local_path(path: str) -> str:
    """Return `path` if it is a path of this service, otherwise the list of studies, because a login
    must not redirect to another site."""
    is_local = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and "\\" not in path
    )
    return path if is_local and len(path) < 300 else "/studies"
