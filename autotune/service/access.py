"""Who is asking, and what they may do.

    read     everything that is known: the point of the service is that a team shares it
    submit   read, and submit studies, and act on one's own
    admin    submit, and act on anybody's

A token comes as `Authorization: Bearer ...` from programs, or as a cookie from the web page. On a loopback address a caller without a token
is this machine's user, with all rights; not when a proxy stands between (it would make strangers local), nor with --require-token.
Whatever changes something is refused when a browser sends it for another site: by Origin and Sec-Fetch-Site for everybody, and by a form token
for callers whom the browser would vouch for by itself (cookie or loopback).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from autotune.ports import SCOPES, StudyRecord, Token, TokenStore
from autotune.service.error_responses import RefusalError
from autotune.service.options import ServiceOptions, is_loopback
from autotune.service.rates import Limiter

COOKIE = "autotune_token"
LOOPBACK = "loopback"
MOST_GOOD = 10_000
"""right tokens whose digests are remembered"""
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks."""

    name: str
    """owner of the token, or `loopback`"""
    scope: str
    """read, submit or admin"""
    key: str
    """by which its requests are counted"""
    by_browser: bool = False
    """whether a browser vouches for it: then changes need the form token"""
    form_token: str = ""
    """what its forms must carry"""

    @property
    def owner(self) -> str:
        """The owner of what it submits; loopback's user owns nothing in particular."""
        return "" if self.name == LOOPBACK else self.name

    def allows(self, scope: str) -> bool:
        """Whether its scope includes that one."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    def check_owns(self, record: StudyRecord) -> None:
        """Raises `RefusalError` unless it may act on the study."""
        if not self.allows("admin") and record.owner != self.owner:
            raise RefusalError(
                403,
                "forbidden",
                f"study {record.id} belongs to {record.owner or 'nobody'}, and only its owner or an admin may act on it",
                remedy="ask its owner, or use a token of scope admin",
            )


class Gate:
    """Recognizes callers."""

    def __init__(self, tokens: TokenStore, options: ServiceOptions) -> None:
        self._tokens, self._options = tokens, options
        self._secret = secrets.token_bytes(32)
        self._rate, self._writes = Limiter(options.rate), Limiter(options.write_rate)
        self._refusals = Limiter(options.refusal_rate)
        self._good: set[bytes] = set()

    async def admit(self, request: Request, scope: str, *, changes: bool = False) -> Caller:
        """The caller, who has that scope. Raises `RefusalError` (401, 403, 429)."""
        if changes:
            self.check_site(request)
        caller = await self.recognize(request)
        if caller is None:
            raise RefusalError(
                401,
                "unauthorized",
                "a token is needed",
                remedy="send Authorization: Bearer TOKEN (AUTOTUNE_TOKEN); autotune token create makes one",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request.state.caller = caller.name  # for the audit of refusals
        limiter = self._writes if changes else self._rate
        if wait := limiter.wait_s(caller.key):
            raise too_many("this caller asks too often", wait)
        if not caller.allows(scope):
            raise RefusalError(
                403, "forbidden", f"this needs a token of scope {scope}, but yours has {caller.scope}", remedy=""
            )
        return caller

    async def recognize(self, request: Request) -> Caller | None:
        """Who asks; None for a stranger. Raises `RefusalError` for a wrong token."""
        header = request.headers.get("authorization")
        cookie = request.cookies.get(COOKIE)
        address = request.client.host if request.client else ""
        if header is None and cookie is None:
            return self._local(request.headers, address)
        kind, _, text = (header or f"Bearer {cookie}").partition(" ")
        token = await self.check_token(request, text.strip()) if kind.lower() == "bearer" else None
        if token is None:
            if header is None:
                return self._local(request.headers, address)  # a cookie that ran out is no attack
            raise RefusalError(
                401,
                "unauthorized",
                "the token is unknown, expired or revoked",
                remedy="autotune token list shows the living ones",
                headers={"WWW-Authenticate": "Bearer"},
            )
        browser = header is None
        return Caller(
            name=token.owner,
            scope=token.scope,
            key=token.id,
            by_browser=browser,
            form_token=self._form_token(text) if browser else "",
        )

    async def check_token(self, request: Request, text: str) -> Token | None:
        """The living token of that text. Raises `RefusalError` when too many wrong ones came from the same address."""
        address = request.client.host if request.client else ""
        mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        wait = self._refusals.wait_s(address, take=False)
        if wait and mark not in self._good:  # a neighbour's wrong tokens do not lock out a right one
            raise too_many("too many wrong tokens came from this address", wait)
        token = await run_in_threadpool(self._tokens.check, text)
        if token is None:
            self._good.discard(mark)
            self._refusals.wait_s(address)
        elif len(self._good) < MOST_GOOD:
            self._good.add(mark)
        return token

    def check_form(self, caller: Caller, given: str) -> None:
        """Raises `RefusalError` unless the form came from our own page."""
        if caller.by_browser and not hmac.compare_digest(caller.form_token.encode(), given.encode("utf-8", "replace")):
            raise RefusalError(403, "csrf", "the form did not come from this page", remedy="load the page again")

    def _local(self, headers: Mapping[str, str], address: str) -> Caller | None:
        options = self._options
        trusted = options.on_loopback and not options.require_token and is_loopback(address)
        if not trusted or any(name in headers for name in _FORWARDED):
            return None
        return Caller(name=LOOPBACK, scope="admin", key=address, by_browser=True, form_token=self._form_token(LOOPBACK))

    def _form_token(self, text: str) -> str:
        return hmac.new(self._secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def check_site(self, request: Request) -> None:
        """Raises `RefusalError` when a browser asks for a page of another site."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        same = origin is None or (origin != "null" and urlsplit(origin).netloc == headers.get("host"))
        if not same or site not in ("none", "same-origin"):
            raise RefusalError(
                403, "csrf", "a page of another site may not ask for this", remedy="use this service's page"
            )


def too_many(message: str, wait_s: float) -> RefusalError:
    """The refusal of somebody who asks too often."""
    seconds = str(max(1, round(wait_s + 0.5)))
    return RefusalError(
        429, "rate_limited", message, remedy=f"try again in {seconds} s", headers={"Retry-After": seconds}
    )
