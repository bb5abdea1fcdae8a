"""Access tokens: shown once and stored as a scrypt hash, with owner, scope, expiry and revocation.

    at_ID_SECRET     ID finds the row; SECRET is 256 random bits

A checked token is remembered for a minute by its SHA-256, so that the slow hash (RFC 7914: N = 2^14, r = 8, p = 1; 16 MiB, some tens of
milliseconds) is paid once a minute and not on every request, also when hundreds of requests bring the token at the same moment; expiry and revocation
are read from the row each time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, update

from autotune.errors import NotFoundError, SpecError
from autotune.ports import SCOPES, Token
from autotune.spec.checks import one_of
from autotune.store.database import Database, from_us, now_us
from autotune.store.rows import clean
from autotune.store.tables import tokens

REMEMBER_S = 60.0
"""time for which a checked token is not hashed again, s"""
MAX_REMEMBERED = 1024
HASHES_AT_ONCE = 8
"""most tokens of known ids that are hashed at the same time"""

_FIND = select(tokens).where(tokens.c.id == bindparam("of_id"))


class TokenKeeper:
    """Implements `autotune.ports.TokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: dict[bytes, tuple[bytes, float]] = {}
        self._lock = threading.Lock()
        self._hashing = [threading.Lock() for _ in range(HASHES_AT_ONCE)]
        """each token has one of them: who brings it while it is hashed waits for the answer instead of hashing it too"""

    def create(self, owner: str, scope: str, *, expires_in_s: float | None = None) -> tuple[Token, str]:
        """A new token and its text, which cannot be shown again. Raises `SpecError` for an unknown scope or a lifetime that is not positive."""
        one_of("scope", scope, SCOPES)
        if expires_in_s is not None and not 0 < expires_in_s < 1e10:
            raise SpecError(
                f"the lifetime of a token must be more than 0 s and less than 1e10 s, but is {expires_in_s} s",
                field="expires_in_s",
            )
        name, secret, salt, now = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_bytes(16), now_us()
        row = {
            "id": name,
            "owner": clean(owner),
            "scope": scope,
            "salt": salt,
            "hash": _hash(secret, salt),
            "created_us": now,
            "expires_us": None if expires_in_s is None else now + round(expires_in_s * 1e6),
        }
        with self._database.write(durable=True) as connection:
            connection.execute(insert(tokens).values(**row))
            kept = connection.execute(_FIND, {"of_id": name}).one()
        return _read(kept), f"at_{name}_{secret}"

    def check(self, text: str) -> Token | None:
        """The token of that text; None when it is unknown, wrong, expired or revoked."""
        prefix, _, rest = text.partition("_")
        name, _, secret = rest.partition("_")
        if prefix != "at" or not secret or len(text) > 200 or not name.isascii() or not name.isalnum():
            return None
        with self._database.read() as connection:
            row = connection.execute(_FIND, {"of_id": name}).first()
        if row is None:
            _hash(
                secret, b"no such token..."
            )  # takes as long as a wrong secret, so that timing does not reveal which ids exist
            return None
        if not self._matches(text, secret, row) or row.revoked_us is not None:
            return None
        return _read(row) if row.expires_us is None or now_us() < row.expires_us else None

    def revoke(self, token_id: str) -> Token:
        """Revokes the token, from now on. Raises `NotFoundError`."""
        with self._database.write(durable=True) as connection:
            connection.execute(
                update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_us.is_(None)).values(revoked_us=now_us())
            )
            row = connection.execute(_FIND, {"of_id": token_id}).first()
        if row is None:
            raise NotFoundError(f"no token has the id {token_id!r}", remedy="`autotune token list` shows them")
        return _read(row)

    def list(self) -> list[Token]:
        """All tokens, oldest first."""
        with self._database.read() as connection:
            return [_read(row) for row in connection.execute(select(tokens).order_by(tokens.c.created_us, tokens.c.id))]

    def _matches(self, text: str, secret: str, row: Row[Any]) -> bool:
        mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        if self._is_remembered(mark, row):
            return True
        with self._hashing[mark[0] % HASHES_AT_ONCE]:
            if self._is_remembered(mark, row):
                return True
            if not hmac.compare_digest(_hash(secret, row.salt), row.hash):
                return False
            with self._lock:
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[mark] = (row.hash, time.monotonic() + REMEMBER_S)
            return True

    def _is_remembered(self, mark: bytes, row: Row[Any]) -> bool:
        with self._lock:
            known, until = self._remembered.get(mark, (b"", 0.0))
        return known == row.hash and time.monotonic() < until


def _hash(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode("utf-8", "surrogatepass"), salt=salt, n=1 << 14, r=8, p=1, dklen=32)


def _read(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        owner=row.owner,
        scope=row.scope,
        created_at=from_us(row.created_us),
        expires_at=None if row.expires_us is None else from_us(row.expires_us),
        revoked_at=None if row.revoked_us is None else from_us(row.revoked_us),
    )
