"""Request guards: ASGI middleware that checks each request before the application reads it.

Host      must be an allowed name; a page of another site that rebinds its name to this address (DNS
rebinding) still sends its own name body      is limited in size, counted as it arrives regardless
of Content-Length, and must be complete in time; otherwise the connection is closed response  gets
security headers HEAD      is answered like GET
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.service.http.error_responses import RefusalError
from autotune.service.options import ServiceOptions, is_loopback
from autotune.spec.texts.as_text import format_duration

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # with no-referrer, browsers send `Origin: null` with the forms of our own pages
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; "
    b"base-uri 'none'"
)


WITHOUT_BODY = "autotune.without_body"
"""key in the scope of a HEAD request, whose stream then ends after its head"""


class RequestGuards:
    """Middleware that checks requests and adds security headers to responses."""

    def __init__(self, app: ASGIApp, *, options: ServiceOptions) -> None:
        self.app, self.options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check_host(scope)
            body = await self._read_body(scope, receive)
        except RefusalError as refusal:
            refusal.headers["Connection"] = "close"
            await refusal.response()(scope, receive, _with_security_headers(send))
            return

        pending = [body]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self.app(scope, replay, _with_security_headers(send))

    def _check_host(self, scope: Scope) -> None:
        names = [value for name, value in scope["headers"] if name == b"host"]
        host = host_in(names[0].decode("latin-1")) if len(names) == 1 else ""
        if not host or not allowed_host(host, self.options):
            raise RefusalError(
                421,
                "host",
                f"the request is for the host {host[:100]!r}, which is not a name of this service",
                remedy="use the service's own address, or start the service with --allowed-host NAME",
            )

    async def _read_body(self, scope: Scope, receive: Receive) -> Message:
        """Return the whole body as one message. Raises `RefusalError` (413, 408)."""
        max_bytes = self.options.max_body_bytes
        too_large = RefusalError(
            413,
            "too_large",
            f"a request body may have at most {max_bytes:,} bytes",
            remedy="send a shorter body",
        )
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > max_bytes:
            raise too_large
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.options.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return message
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > max_bytes:
                        raise too_large
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise RefusalError(
                408,
                "too_slow",
                f"the request was not complete after {format_duration(self.options.body_timeout_s)}",
                remedy="send the request again",
            ) from None
        return {"type": "http.request", "body": b"".join(chunks), "more_body": False}


class HeadAsGet:
    """Middleware that answers HEAD like GET, with the same head; the server omits the body. It must
    be the innermost."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD request on as GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        get_scope = {**scope, "method": "GET", WITHOUT_BODY: True}
        try:
            await self.app(get_scope, receive, send)
        finally:
            scope.update(
                {name: value for name, value in get_scope.items() if name != "method"}
            )  # the route, which is a label of the request's metrics


def allowed_host(host: str, options: ServiceOptions) -> bool:
    """Return whether `host` is a name of this service. Loopback names only count if the service
    listens on loopback."""
    names: Iterable[str] = (options.host.strip("[]"), *options.allowed_hosts)
    return host in {name.lower() for name in names} or (options.on_loopback and is_loopback(host))


def host_in(header: str) -> str:
    """Return the host in a Host header, in lower case and without port; an empty text if the header
    is malformed."""
    text = header.strip().lower()
    if text.startswith("["):
        address, bracket, port = text[1:].partition("]")
        return address if bracket and (not port or port[1:].isdigit()) else ""
    name, _, port = text.partition(":")
    return name if not port or port.isdigit() else ""


def _with_security_headers(send: Send) -> Send:
    """Return a `send` that adds security headers to the response."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[Any] = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [pair for pair in _SECURITY_HEADERS if pair[0] not in present]
            if b"content-security-policy" not in present:
                headers.append((b"content-security-policy", _POLICY))
            if b"cache-control" not in present:
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return with_headers
