"""Errors as HTTP responses: JSON of one shape below /api, {error: {kind, message, field, remedy}},
and pages elsewhere; and the HTTP status of each error.

For errors in a spec's text, the body also has `problems`: all mistakes with lines and columns
(`AutotuneError.document`).

An unexpected exception becomes a 500 without details; its traceback is logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from autotune.errors import (
    AutotuneError,
    CatalogError,
    ConflictError,
    NotFoundError,
    RunnerError,
    ServiceError,
    StoreError,
    StoreUnavailableError,
)
from autotune.spec.plain import finite
from autotune.spec.texts.validation import violated_rule

log = logging.getLogger("autotune.service")

STATUS: tuple[tuple[type[AutotuneError], int], ...] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (StoreUnavailableError, 503),
    (StoreError, 503),
    (RunnerError, 503),
    (ServiceError, 500),
    (CatalogError, 422),
    (AutotuneError, 422),
)
"""HTTP statuses by class; the first matching class decides. Errors of the last line are the
caller's mistakes."""

_HTTP_ERRORS = {
    400: ("bad_request", "this is not a valid request"),
    404: ("not_found", "there is nothing at this address"),
    405: ("method_not_allowed", "this address does not accept that method"),
}
"""(kind, message) of the framework's errors, by HTTP status"""


_PROBLEM_TEXTS = {
    "missing": "this is required, but is missing",
    "json_invalid": "the request is not valid JSON: {error}",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a JSON object"),
}
"""this service's texts for errors of pydantic, by type"""
_ECHOED_VALUE = re.compile(r"[A-Za-z0-9 _.:+-]{1,80}")
"""wrong values that an error message may repeat"""


class RefusalError(Exception):
    """A request that the service rejects by its own rules: access, limits, media type."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        remedy: str = "",
        field: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.remedy, self.field = (
            status,
            kind,
            message,
            remedy,
            field,
        )
        self.headers = headers or {}

    def response(self) -> JSONResponse:
        """Return the error as a response."""
        return error_response(
            self.status,
            self.kind,
            self.message,
            field=self.field,
            remedy=self.remedy,
            headers=self.headers,
        )


class StrictJSONResponse(JSONResponse):
    """JSON without NaN or infinity."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return strict_json(content)


def strict_json(content: Any) -> bytes:
    """Return JSON in ASCII: NaN and infinity become null, lone surrogates are escaped."""
    return json.dumps(finite(content), allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(
    status: int,
    kind: str,
    message: str,
    *,
    field: str = "",
    remedy: str = "",
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """Return an error as a response."""
    body = {"error": {"kind": kind, "message": message, "field": field, "remedy": remedy}}
    return StrictJSONResponse(body, status_code=status, headers=headers)


def handle_refusal(request: Request, error: Exception) -> Response:
    """Return the response to a `RefusalError`. Visitors of pages who need a token are redirected to
    the login."""
    assert isinstance(error, RefusalError)
    if _is_api(request):
        return error.response()
    if error.status == 401:
        back = request.url.path if request.method == "GET" else "/studies"
        return RedirectResponse(f"/login?next={quote(back)}", status_code=303)
    return _page(request, error.status, error)


def status_of(error: AutotuneError) -> int:
    """Return the HTTP status of an error."""
    return next(status for kind, status in STATUS if isinstance(error, kind))


def handle_autotune_error(request: Request, error: Exception) -> Response:
    """Return the response to an `AutotuneError`."""
    assert isinstance(error, AutotuneError)
    status = status_of(error)
    if not _is_api(request):
        return _page(request, status, error)
    headers = {"Retry-After": "5"} if status == 503 else None
    if isinstance(error, StoreError):
        log.error("%s", error)
    return StrictJSONResponse({"error": error.document()}, status_code=status, headers=headers)


def _is_api(request: Request) -> bool:
    """Return whether the request is to the API; other addresses are pages."""
    return request.url.path.startswith("/api/")


def _page(request: Request, status: int, error: Exception) -> Response:
    """Return the page that shows an error, with the navigation for its caller."""
    from autotune.service.pages.rendering import render

    return render(
        "error.html", status=status, error=error, caller=getattr(request.state, "caller", None)
    )


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Return the response to an error of the framework: no such address, no such method."""
    assert isinstance(error, HTTPException)
    kind, message = _HTTP_ERRORS.get(error.status_code, ("http", str(error.detail)))
    if (
        error.status_code == 404
        and "text/html" in request.headers.get("accept", "")
        and not _is_api(request)
    ):
        error = AutotuneError(
            f"there is no page at {request.url.path[:200]}", remedy="start from the list of studies"
        )
        with contextlib.suppress(RefusalError):  # a wrong token: show the page as to a stranger
            request.state.caller = await request.app.state.service.gate.authenticate(request)
        return _page(request, 404, error)
    remedy = "/openapi.json lists all addresses" if error.status_code in (404, 405) else ""
    if error.status_code == 400:
        remedy = "send JSON in UTF-8, without deep nesting and with integers below 2^63"
    return error_response(
        error.status_code, kind, message, remedy=remedy, headers=dict(error.headers or {})
    )


def handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to invalid parameters; it reports the first error."""
    first: dict[str, Any] = next(iter(error.errors()), {})  # type: ignore[attr-defined]
    context = first.get("ctx", {})
    field_path = [
        str(part)
        for part in (*first.get("loc", ())[1:], *([context["key"]] if "key" in context else []))
    ]
    kind, value = str(first.get("type", "")), first.get("input")
    if kind == "json_invalid":  # its location is a position in the text, which the message contains
        field_path = []
    message = violated_rule({"msg": "a parameter is wrong", **first}, _PROBLEM_TEXTS)
    # only repeat harmless values, never markup
    if kind not in (*_PROBLEM_TEXTS, "unknown_key", "quantity") and _ECHOED_VALUE.fullmatch(
        str(value)
    ):
        message += f", but is {value!r}"
    default_remedy = "/openapi.json describes the parameters"
    if kind in _PROBLEM_TEXTS and not field_path:
        default_remedy = "send a JSON object, with the header Content-Type: application/json"
    remedy = context.get("remedy", default_remedy)
    # a callable searches for the nearest key, which is only needed here
    text = str(remedy() if callable(remedy) else remedy)
    return error_response(422, "spec", message, field=".".join(field_path), remedy=text)


def handle_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an unexpected exception, and log its traceback."""
    log.error("unexpected error at %s", request.url.path, exc_info=error)
    return error_response(
        500,
        "internal",
        "the service failed unexpectedly",
        remedy="the service's log has the traceback",
    )
