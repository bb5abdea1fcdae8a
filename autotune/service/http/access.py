"""Access control: who sends a request, and what they may do.

    read     read everything: a team shares its results
    submit   read, submit studies, and act on one's own studies
    run      submit, also specs that name programs in the service's program folders
    admin    run, and act on everybody's studies

Programs send a token as `Authorization: Bearer ...`, the web page as a cookie. A wrong token costs
a fast hash and is counted by address; a valid one never waits for wrong ones. What outlives a
request's first moment (an event stream, a place in a queue) asks again whether its token is valid
still.

On a loopback address a caller without a token counts as the user of the service, with all rights.
Behind a proxy strangers come from loopback too, so this holds only for a service that was told of
no outside (`ServiceOptions.asks_everybody`), for no request that shows a proxy (`_is_passed_on`),
and for no connection of another user's program (`peer_user`), as which proxies run.

A request that changes something is refused when a browser sends it for a page of another site.
Origin and Sec-Fetch-Site are checked for everybody; callers that the browser authenticates by
itself (by cookie or loopback) must also send a form token.

Which user of this machine has the other end of a loopback connection, as Linux lists its sockets
(`/proc/net/tcp`, proc(5)).

Proxies and tunnels run as users of their own (nginx's workers as www-data): a request that they
pass on without any sign of it still comes from their socket.
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
"""time for which a reading of the ended tokens serves event streams"""
_OF_PROXIES = (
    ("forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-scheme")
)  # fmt: skip
_OF_PROXIES_BEGIN = ("x-forwarded", "x-original-", "x-envoy-", "x-amzn-", "cf-", "tailscale-")
"""headers that proxies and tunnels add, and how others of theirs begin"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request."""

    name: str
    """owner of the token, or `loopback`"""
    scope: str
    """read, submit, run or admin"""
    key: str
    """the key of its rate limits: token id or address"""
    by_browser: bool = False
    """whether a browser authenticates it by itself; its changes then need the form token"""
    form_token: str = ""
    """the token that its forms must carry"""
    token: str = ""
    """the id of its token; empty for the user of loopback"""

    @property
    def owner(self) -> str:
        """The owner of the studies that it submits; empty for the user of loopback."""
        return "" if self.name == LOOPBACK else self.name

    def allows(self, scope: str) -> bool:
        """Whether its scope includes `scope`."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    def owns(self, record: StudyRecord) -> bool:
        """Whether the study is its own, or it is an admin."""
        return self.allows("admin") or (bool(self.owner) and record.owner == self.owner)

    def check_owns(self, record: StudyRecord) -> None:
        """Raises `RefusalError` (403) unless it owns the study."""
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
        """The caller, if it has that scope. Raises `RefusalError` (401, 403, 429)."""
        if changes:
            self.check_site(request)
        caller = await self.recognize(request)
        if caller is None:
            raise RefusalError(
                401,
                "unauthorized",
                _why_a_token(request, self._options),
                remedy="set AUTOTUNE_TOKEN, or send Authorization: Bearer TOKEN; `autotune token create` creates a token",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = caller  # for the audit of refusals and the page that shows one
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

    async def recognize(self, request: Request) -> Caller | None:
        """The caller; None without a token where one is needed. Raises `RefusalError` for a wrong
        token."""
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
        """The valid token of that text, or None. Raises `RefusalError` when too many wrong ones
        came from the same address."""
        token = await run_in_threadpool(self._tokens.check, text)
        if token is None and (wait := self._refusals.wait_s(_address(request))):
            raise too_many("too many wrong tokens came from this address", wait)
        return token

    def check_still_valid(self, caller: Caller) -> None:
        """Raises `RefusalError` (401) when the caller's token was revoked or has expired since it
        was admitted. Reads the store."""
        if caller.token and caller.token in self._ended_tokens():
            raise _wrong_token()

    async def is_still_valid(self, caller: Caller) -> bool:
        """The same as a question; all event streams share one reading of the store for
        `RECHECK_S`."""
        if not caller.token:
            return True
        now_s = time.monotonic()
        reading, at_s = self._reading
        if reading is None or now_s - at_s >= RECHECK_S:
            reading = asyncio.ensure_future(run_in_threadpool(self._ended_tokens))
            self._reading = reading, now_s
        return caller.token not in await asyncio.shield(reading)

    def _ended_tokens(self) -> frozenset[str]:
        """The tokens that are revoked or expired; not the valid ones, among which a reading lacks
        those that were made since."""
        now = datetime.now(UTC)
        return frozenset(token.id for token in self._tokens.list() if not token.is_valid_at(now))

    def check_form(self, caller: Caller, given: str) -> None:
        """Raises `RefusalError` (403) unless the form came from this service's own page."""
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
            self._options.asks_everybody
            or not is_loopback(address)
            or _is_passed_on(request)
            or _is_anothers(request)
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
        """Raises `RefusalError` (403) when a browser sends the request for a page of another
        site."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        same = origin is None or (
            origin != "null" and urlsplit(origin).netloc == headers.get("host")
        )
        if not same or site not in ("none", "same-origin"):
            raise RefusalError(
                403,
                "csrf",
                "requests from other sites are not allowed",
                remedy="use this service's own page",
            )


def who_may_what(options: ServiceOptions) -> str:
    """Who may do what at a service with these options, in a sentence."""
    if asking := options.asks_everybody:
        return f"every caller needs a token, even on this machine ({asking}); the token's scope decides what the caller may do (`autotune token create --scope ...`)"
    return "your own programs on this machine need no token, and neither do requests through a proxy or tunnel that adds no forwarding header; to change this, use --require-token"


def _why_a_token(request: Request, options: ServiceOptions) -> str:
    if options.asks_everybody:
        return "this service requires a token"
    if _is_passed_on(request):
        return "this request came through a proxy or for a different host name, so the request needs a token"
    if _is_anothers(request):
        return "this request came from a program run by another user of this machine, possibly a proxy, so the request needs a token"
    return "this service requires a token"


def _is_anothers(request: Request) -> bool:
    """Whether the other end is a program of another user of this machine."""
    server = request.scope.get("server")
    return bool(
        request.client
        and server
        and server[1]
        and is_of_another_user(request.client.port, server[1])
    )


def _is_passed_on(request: Request) -> bool:
    """Whether a request shows that a proxy passed it on: by a header, or by a host that is not of
    this machine. A plain `proxy_pass` of nginx adds no header and puts a loopback address for the
    host, but asks in HTTP/1.0, as no client of this machine does."""
    return (
        request.scope.get("http_version") == "1.0"
        or not is_loopback(host_in(request.headers.get("host", "")))
        or any(
            name in _OF_PROXIES or name.startswith(_OF_PROXIES_BEGIN) for name in request.headers
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
    """The error (429) for a caller over its rate limit."""
    seconds = str(max(1, round(wait_s + 0.5)))
    return RefusalError(
        429,
        "rate_limited",
        message,
        remedy=f"try again in {seconds} s",
        headers={"Retry-After": seconds},
    )


TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, REMOTE, USER = 1, 2, 7
"""columns of these tables: HEXADDRESS:HEXPORT of both ends, and the user's number"""


def is_of_another_user(peer_port: int, own_port: int) -> bool:
    """Whether the socket from `peer_port` to `own_port` belongs to another user than this process.
    False where the machine does not tell."""
    rows = (row for table in TABLES for row in _rows(table))
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
