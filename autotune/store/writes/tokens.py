"""Access tokens: shown once and stored as a hash, with owner, scope, expiry and revocation.

    at_ID_SECRET     ID finds the row; SECRET is 256 random bits

Nobody guesses 256 random bits, so a fast hash (HMAC-SHA-256, with a salt) keeps a secret as safe as
a slow one, and a wrong token costs no more than a right one. Stores of earlier releases hold scrypt
hashes. Such a token pays the slow hash once: when it is first shown, its row gets the fast hash.

The audit log: who did what through the service. It is only ever appended to.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from autotune.errors import NotFoundError, SpecError, StoreError
from autotune.ports import SCOPES, AuditEvent, Token
from autotune.spec.checks import one_of
from autotune.store.connection.database import Database, from_us, now_us
from autotune.store.rows import clean, json_text
from autotune.store.tables import audit, tokens

FAST = b"hmac-sha256:"
"""how a fast hash begins; a scrypt hash has 32 bytes and no beginning"""

_FIND = select(tokens).where(tokens.c.id == bindparam("of_id"))


class TokenKeeper:
    """Implements `autotune.ports.TokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._renewed: dict[bytes, bytes] = {}
        """fast hashes by the slow ones that they replace, also where the row cannot be written"""
        self._slowly = threading.Lock()
        """one slow hash at a time: whoever shows an old token while it is hashed waits for the
        answer instead of hashing it too"""

    def create(
        self, owner: str, scope: str, *, expires_in_s: float | None = None
    ) -> tuple[Token, str]:
        """A new token and its text, which cannot be shown again. Raises `SpecError` for an unknown
        scope or a lifetime that is not positive."""
        one_of("scope", scope, SCOPES)
        if expires_in_s is not None and not 0 < expires_in_s < 1e10:
            raise SpecError(
                f"a token's lifetime must be more than 0 s and less than 1e10 s, but is {expires_in_s} s",
                field="expires_in_s",
            )
        name, secret, salt, now = (
            secrets.token_hex(6),
            secrets.token_urlsafe(32),
            secrets.token_bytes(16),
            now_us(),
        )
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
        if (
            prefix != "at"
            or not secret
            or len(text) > 200
            or not name.isascii()
            or not name.isalnum()
        ):
            return None
        with self._database.read() as connection:
            row = connection.execute(_FIND, {"of_id": name}).first()
        if (
            row is None
            or row.revoked_us is not None
            or (row.expires_us is not None and now_us() >= row.expires_us)
        ):
            return None
        return _read(row) if self._matches(secret, row) else None

    def revoke(self, token_id: str) -> Token:
        """Revokes the token, from now on. Raises `NotFoundError`."""
        with self._database.write(durable=True) as connection:
            connection.execute(
                update(tokens)
                .where(tokens.c.id == token_id, tokens.c.revoked_us.is_(None))
                .values(revoked_us=now_us())
            )
            row = connection.execute(_FIND, {"of_id": token_id}).first()
        if row is None:
            raise NotFoundError(
                f"there is no token {token_id!r}", remedy="`autotune token list` shows the tokens"
            )
        return _read(row)

    def list(self) -> list[Token]:
        """All tokens, oldest first."""
        with self._database.read() as connection:
            return [
                _read(row)
                for row in connection.execute(
                    select(tokens).order_by(tokens.c.created_us, tokens.c.id)
                )
            ]

    def _matches(self, secret: str, row: Row[Any]) -> bool:
        given = _hash(secret, row.salt)
        known = row.hash if row.hash.startswith(FAST) else self._renewed.get(row.hash)
        if known is not None:
            return hmac.compare_digest(given, known)
        with self._slowly:
            if row.hash in self._renewed:
                return hmac.compare_digest(given, self._renewed[row.hash])
            if not hmac.compare_digest(_slow_hash(secret, row.salt), row.hash):
                return False
            self._renewed[row.hash] = given
        renewal = (
            update(tokens)
            .where(tokens.c.id == row.id, tokens.c.hash == row.hash)
            .values(hash=given)
        )
        # one that cannot be written now works as well
        with (
            suppress(StoreError),
            self._database.write() as connection,
        ):
            connection.execute(renewal)
        return True


def _hash(secret: str, salt: bytes) -> bytes:
    return FAST + hmac.digest(salt, secret.encode("utf-8", "surrogatepass"), "sha256")


def _slow_hash(secret: str, salt: bytes) -> bytes:
    """The hash of releases before this one (RFC 7914: 16 MiB, some tens of milliseconds)."""
    return hashlib.scrypt(
        secret.encode("utf-8", "surrogatepass"), salt=salt, n=1 << 14, r=8, p=1, dklen=32
    )


def _read(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        owner=row.owner,
        scope=row.scope,
        created_at=from_us(row.created_us),
        expires_at=None if row.expires_us is None else from_us(row.expires_us),
        revoked_at=None if row.revoked_us is None else from_us(row.revoked_us),
    )


def keep_audit(
    connection: Connection, actor: str, action: str, subject: str, data: Mapping[str, Any]
) -> None:
    """Appends a line."""
    row = {
        "actor": clean(actor),
        "action": clean(action),
        "subject": clean(subject),
        "data": json_text(data),
    }
    connection.execute(insert(audit).values(at_us=now_us(), **row))


def read_audit(connection: Connection, *, after: int | None, limit: int) -> list[AuditEvent]:
    """The first lines with a larger number than `after`, in order; of None, the newest lines."""
    if after is None:
        newest = connection.execute(select(audit).order_by(audit.c.sequence.desc()).limit(limit))
        rows = list(newest)[::-1]
    else:
        found = (
            select(audit).where(audit.c.sequence > after).order_by(audit.c.sequence).limit(limit)
        )
        rows = list(connection.execute(found))
    return [
        AuditEvent(
            sequence=row.sequence,
            at=from_us(row.at_us),
            actor=row.actor,
            action=row.action,
            subject=row.subject,
            data=json.loads(row.data),
        )
        for row in rows
    ]
