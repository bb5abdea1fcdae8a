"""Access control: who sends a request, and what they may do.

    read     read everything: a team shares its results
    submit   read, submit studies, and control one's own studies
    run      submit, also specs that name programs in the service's program folders
    admin    run, and control everybody's studies

Programs send a token as `Authorization: Bearer ...`, the web page as a cookie. A wrong token costs
a fast hash and is counted by address; requests with a valid token never wait for wrong ones.
Long-lived requests (an event stream, a place in a queue) check again whether their token is valid.

On a loopback address, a caller without a token counts as the service's user, with all rights.
Behind a proxy, strangers come from loopback too. Therefore this only holds for a service that was
not configured for callers from outside (`ServiceOptions.token_reason`), for requests without signs
of a proxy (`_is_proxied`), and for connections from programs of the same user
(`socket_is_of_another_user`), because proxies run as users of their own (nginx's workers as
www-data), also those that leave no sign. The user of a loopback connection is read from Linux's
list of sockets (`/proc/net/tcp`, proc(5)).

A request that changes something is rejected if a browser sends it for a page of another site.
Origin and Sec-Fetch-Site are checked for everybody; callers that the browser authenticates by
itself (by cookie or loopback) must also send a form token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from autotune.ports import SCOPES, StudyRecord, Token, TokenStore
from autotune.service.http.error_responses import RefusalError
from autotune.service.http.fair_use import Limiter
from autotune.service.http.middleware import host_in
from autotune.service.options import LOOPBACK, ServiceOptions, is_loopback

COOKIE = "autotune_token"
RECHECK_S = 0.5
"""time for which event streams share one reading of the ended tokens, seconds"""
_PROXY_HEADERS = (
    ("forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-scheme")
)  # fmt: skip
_PROXY_HEADER_PREFIXES = ("x-forwarded", "x-original-", "x-envoy-", "x-amzn-", "cf-", "tailscale-")
"""headers that proxies and tunnels add, and prefixes of such headers"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request."""

    name: str
    """owner of the token, or `loopback` for the service's user"""
    scope: str
    """read, submit, run or admin"""
    key: str
    """key for rate limits: token id or address"""
    by_browser: bool = False
    """whether a browser authenticates the caller by itself; its changes then need the form token"""
    form_token: str = ""
    """token that the caller's forms must contain"""
    token: str = ""
    """id of the caller's token; empty for loopback"""

    @property
    def owner(self) -> str:
        """Owner of the studies that the caller submits; empty for loopback."""
        return "" if self.name == LOOPBACK else self.name

    def allows(self, scope: str) -> bool:
        """Return whether the caller's scope includes `scope`."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    def owns(self, record: StudyRecord) -> bool:
        """Return whether the study belongs to the caller, or the caller is an admin."""
        return self.allows("admin") or (bool(self.owner) and record.owner == self.owner)

    def check_owns(self, record: StudyRecord) -> None:
        """Raise `RefusalError` (403) unless the caller owns the study."""
        if not self.owns(record):
            raise RefusalError(
                403,
                "forbidden",
                f"only the owner or an admin may act on study {record.id}, which belongs to {record.owner or 'nobody'}",
                remedy="ask the study's owner, or use a token with the admin scope",
            )


class Gate:
    """Authenticates callers and limits their rates."""

    def __init__(self, tokens: TokenStore, options: ServiceOptions) -> None:
        self._tokens, self._options = tokens, options
        self._secret = secrets.token_bytes(32)
        self._rate, self._writes = Limiter(options.rate), Limiter(options.write_rate)
        self._refusals = Limiter(options.refusal_rate)
        self._reading: tuple[asyncio.Future[frozenset[str]] | None, float] = (None, 0.0)

    async def admit(self, request: Request, scope: str, *, changes: bool = False) -> Caller:
        """Return the caller, if it has the scope. `changes`: whether the request changes something.
        Raises `RefusalError` (401, 403, 429)."""
        if changes:
            self.check_site(request)
        caller = await self.authenticate(request)
        if caller is None:
            raise RefusalError(
                401,
                "unauthorized",
                _token_reason(request, self._options),
                remedy="set AUTOTUNE_TOKEN, or send Authorization: Bearer TOKEN; `autotune token create` creates a token",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = caller  # for the audit log of rejected requests, and for error pages
        limiter = self._writes if changes else self._rate
        if wait := limiter.wait_s(caller.key):
            raise too_many("this caller sends too many requests", wait)
        if not caller.allows(scope):
            raise RefusalError(
                403,
                "forbidden",
                f"this request needs a token with the {scope} scope, but your token has {caller.scope}",
                remedy=f"ask whoever runs the service for such a token (`autotune token create --owner NAME --scope {scope}`)",
            )
        return caller

    async def authenticate(self, request: Request) -> Caller | None:
        """Return the caller; None if a token is required but missing. Raises `RefusalError` for a
        wrong token."""
        header = request.headers.get("authorization")
        cookie = request.cookies.get(COOKIE)
        if header is None and cookie is None:
            return self._local(request)
        kind, _, text = (f"Bearer {cookie}" if header is None else header).partition(" ")
        token = await self.check_token(request, text.strip()) if kind.lower() == "bearer" else None
        if token is None:
            if header is None:
                return self._local(request)  # a cookie with an expired token is no attack
            raise _wrong_token()
        browser = header is None
        return Caller(
            name=token.owner,
            scope=token.scope,
            key=token.id,
            by_browser=browser,
            form_token=self._form_token(text) if browser else "",
            token=token.id,
        )

    async def check_token(self, request: Request, text: str) -> Token | None:
        """Return the valid token with that text, or None. Raises `RefusalError` if too many wrong
        tokens came from the same address."""
        token = await run_in_threadpool(self._tokens.check, text)
        if token is None and (wait := self._refusals.wait_s(_address(request))):
            raise too_many("too many wrong tokens came from this address", wait)
        return token

    def check_still_valid(self, caller: Caller) -> None:
        """Raise `RefusalError` (401) if the caller's token was revoked or has expired since the
        request was admitted. Reads the store."""
        if caller.token and caller.token in self._ended_tokens():
            raise _wrong_token()

    async def is_still_valid(self, caller: Caller) -> bool:
        """Return whether the caller's token is still valid. All event streams share one reading of
        the store for `RECHECK_S`."""
        if not caller.token:
            return True
        now_s = time.monotonic()
        reading, at_s = self._reading
        if reading is None or now_s - at_s >= RECHECK_S:
            reading = asyncio.ensure_future(run_in_threadpool(self._ended_tokens))
            self._reading = reading, now_s
        return caller.token not in await asyncio.shield(reading)

    def _ended_tokens(self) -> frozenset[str]:
        """Return revoked and expired tokens. Valid tokens are not listed, because a cached list
        would lack tokens that were created since."""
        now = datetime.now(UTC)
        return frozenset(token.id for token in self._tokens.list() if not token.is_valid_at(now))

    def check_form(self, caller: Caller, given: str) -> None:
        """Raise `RefusalError` (403) unless the form came from this service's own page."""
        if caller.by_browser and not hmac.compare_digest(
            caller.form_token.encode(), given.encode("utf-8", "replace")
        ):
            raise RefusalError(
                403,
                "csrf",
                "the form did not come from this page, or the service has been restarted since",
                remedy="reload the page and try again",
            )

    def _local(self, request: Request) -> Caller | None:
        address = _address(request)
        if (
            self._options.token_reason
            or not is_loopback(address)
            or _is_proxied(request)
            or _is_from_another_user(request)
        ):
            return None
        return Caller(
            name=LOOPBACK,
            scope="admin",
            key=address,
            by_browser=True,
            form_token=self._form_token(LOOPBACK),
        )

    def _form_token(self, text: str) -> str:
        return hmac.new(
            self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()

    def check_site(self, request: Request) -> None:
        """Raise `RefusalError` (403) if a browser sends the request for a page of another site."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_same_origin = origin is None or (
            origin != "null" and urlsplit(origin).netloc == headers.get("host")
        )
        if not is_same_origin or site not in ("none", "same-origin"):
            raise RefusalError(
                403,
                "csrf",
                "requests from other sites are not allowed",
                remedy="use this service's own page",
            )


def access_summary(options: ServiceOptions) -> str:
    """Return one sentence on who may do what at a service with these options."""
    if reason := options.token_reason:
        return f"every caller needs a token, even on this machine ({reason}); the token's scope decides what the caller may do (`autotune token create --scope ...`)"
    return "your own programs on this machine need no token, and neither do requests through a proxy or tunnel that adds no forwarding header; to change this, use --require-token"


def _token_reason(request: Request, options: ServiceOptions) -> str:
    if options.token_reason:
        return "this service requires a token"
    if _is_proxied(request):
        return "this request came through a proxy or for a different host name, so the request needs a token"
    if _is_from_another_user(request):
        return "this request came from a program run by another user of this machine, possibly a proxy, so the request needs a token"
    return "this service requires a token"


def _is_from_another_user(request: Request) -> bool:
    """Return whether the client is a program of another user of this machine."""
    server = request.scope.get("server")
    return bool(
        request.client
        and server
        and server[1]
        and socket_is_of_another_user(request.client.port, server[1])
    )


def _is_proxied(request: Request) -> bool:
    """Return whether a proxy passed the request on, as a header or a foreign host name shows. A
    plain `proxy_pass` of nginx adds no header and sends a loopback host, but uses HTTP/1.0, as no
    client on this machine does."""
    return (
        request.scope.get("http_version") == "1.0"
        or not is_loopback(host_in(request.headers.get("host", "")))
        or any(
            name in _PROXY_HEADERS or name.startswith(_PROXY_HEADER_PREFIXES)
            for name in request.headers
        )
    )


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _wrong_token() -> RefusalError:
    return RefusalError(
        401,
        "unauthorized",
        "the token is unknown, expired or revoked",
        remedy="`autotune token list` shows which tokens are valid",
        headers={"WWW-Authenticate": "Bearer"},
    )


def too_many(message: str, wait_s: float) -> RefusalError:
    """Return the error (429) for a caller above its rate limit."""
    seconds = str(max(1, round(wait_s + 0.5)))
    return RefusalError(
        429,
        "rate_limited",
        message,
        remedy=f"try again in {seconds} s",
        headers={"Retry-After": seconds},
    )


SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, REMOTE, USER = 1, 2, 7
"""columns of these tables: HEXADDRESS:HEXPORT of both ends, and the user id"""


def socket_is_of_another_user(peer_port: int, own_port: int) -> bool:
    """Return whether the socket from `peer_port` to `own_port` belongs to another user than this
    process; False if the machine does not tell."""
    rows = (row for table in SOCKET_TABLES for row in _rows(table))
    users = {
        row[USER]
        for row in rows
        if _port(row[LOCAL]) == peer_port and _port(row[REMOTE]) == own_port
    }
    return bool(users) and str(os.geteuid()) not in users


def _rows(table: Path) -> list[list[str]]:
    try:
        lines = table.read_text(encoding="ascii", errors="replace").splitlines()[1:]
    except OSError:
        return []
    return [row for row in map(str.split, lines) if len(row) > USER]


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)
