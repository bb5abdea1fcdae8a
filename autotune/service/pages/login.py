"""Login and logout. A login stores the token in a cookie that no script can read and no other site
can send."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from autotune.service.http.access import COOKIE
from autotune.service.http.service_state import TheService
from autotune.service.pages.rendering import render
from autotune.service.pages.visits import form_of

router = APIRouter()

COOKIE_S = 30 * 86400


@router.get("/login")
async def login_page(request: Request) -> Response:
    """The login form."""
    return render("login.html", next=_inside(request.query_params.get("next", "")), wrong=False)


@router.post("/login")
async def login(request: Request, service: TheService) -> Response:
    """Stores a valid token in the cookie."""
    service.gate.check_site(request)
    form = await form_of(request)
    token = await service.gate.check_token(request, form.get("token", "").strip())
    if token is None:
        return render("login.html", status=401, next=_inside(form.get("next", "")), wrong=True)
    await run_in_threadpool(service.store.record_audit, token.owner, "login", token.id)
    answer = RedirectResponse(_inside(form.get("next", "")), status_code=303)
    secure = request.url.scheme == "https" or service.options.public_url.startswith("https:")
    answer.set_cookie(
        COOKIE,
        form["token"].strip(),
        max_age=COOKIE_S,
        httponly=True,
        samesite="strict",
        secure=secure,
        path="/",
    )
    return answer


@router.post("/logout")
async def logout(request: Request, service: TheService) -> Response:
    """Deletes the cookie."""
    service.gate.check_site(request)
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, path="/")
    return answer


def _inside(path: str) -> str:
    """`path` if it is a path of this service, otherwise the list of studies: a login must not
    redirect to another site."""
    plain = (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and path.isprintable()
        and "\\" not in path
    )
    return path if plain and len(path) < 300 else "/studies"
