"""Access tokens, stored as hashes with owner, scope, expiry and revocation; and the append-only
audit log of the service.

    at_ID_SECRET     text of a token; ID: key of its row; SECRET: 256 random bits

Because 256 random bits cannot be guessed, a fast hash (HMAC-SHA-256 with a salt) is as safe as a
slow one. Earlier releases stored scrypt hashes, which are replaced by fast ones when their token is
first used.
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
"""prefix of a fast hash; a scrypt hash has 32 bytes and no prefix"""

_FIND = select(tokens).where(tokens.c.id == bindparam("of_id"))


class TokenTable:
    """Implements `autotune.ports.TokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._renewed: dict[bytes, bytes] = {}
        """fast hashes by the scrypt hashes that they replace, even if the row cannot be updated"""
        self._scrypt_lock = threading.Lock()
        """limits scrypt to one hash at a time, so that concurrent requests with the same token
        compute it once"""

    def create(
        self, owner: str, scope: str, *, expires_in_s: float | None = None
    ) -> tuple[Token, str]:
        """Create a token, and return it with its text, which is not stored. Raises `SpecError` for
        an unknown scope or an invalid lifetime."""
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
            stored = connection.execute(_FIND, {"of_id": name}).one()
        return _read(stored), f"at_{name}_{secret}"

    def check(self, text: str) -> Token | None:
        """Return the token with this text; None if it is unknown, wrong, expired or revoked."""
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
        """Revoke the token, and return it. Raises `NotFoundError`."""
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
        """Return all tokens, oldest first."""
        with self._database.read() as connection:
            return [
                _read(row)
                for row in connection.execute(
                    select(tokens).order_by(tokens.c.created_us, tokens.c.id)
                )
            ]

    def _matches(self, secret: str, row: Row[Any]) -> bool:
        """Return whether the secret is the row's; replace a scrypt hash by a fast one."""
        fast_hash = _hash(secret, row.salt)
        known = row.hash if row.hash.startswith(FAST) else self._renewed.get(row.hash)
        if known is not None:
            return hmac.compare_digest(fast_hash, known)
        with self._scrypt_lock:
            if row.hash in self._renewed:
                return hmac.compare_digest(fast_hash, self._renewed[row.hash])
            if not hmac.compare_digest(_scrypt_hash(secret, row.salt), row.hash):
                return False
            self._renewed[row.hash] = fast_hash
        renewal = (
            update(tokens)
            .where(tokens.c.id == row.id, tokens.c.hash == row.hash)
            .values(hash=fast_hash)
        )
        # the token is valid even if the new hash cannot be stored
        with (
            suppress(StoreError),
            self._database.write() as connection,
        ):
            connection.execute(renewal)
        return True


def _hash(secret: str, salt: bytes) -> bytes:
    """Return the fast hash with its prefix."""
    return FAST + hmac.digest(salt, secret.encode("utf-8", "surrogatepass"), "sha256")


def _scrypt_hash(secret: str, salt: bytes) -> bytes:
    """Return the scrypt hash (RFC 7914) of earlier releases. It takes 16 MiB and tens of ms."""
    return hashlib.scrypt(
        secret.encode("utf-8", "surrogatepass"), salt=salt, n=1 << 14, r=8, p=1, dklen=32
    )


def _read(row: Row[Any]) -> Token:
    """Return the token of a row."""
    return Token(
        id=row.id,
        owner=row.owner,
        scope=row.scope,
        created_at=from_us(row.created_us),
        expires_at=None if row.expires_us is None else from_us(row.expires_us),
        revoked_at=None if row.revoked_us is None else from_us(row.revoked_us),
    )


def append_audit(
    connection: Connection, actor: str, action: str, subject: str, data: Mapping[str, Any]
) -> None:
    """Append an event to the audit log."""
    row = {
        "actor": clean(actor),
        "action": clean(action),
        "subject": clean(subject),
        "data": json_text(data),
    }
    connection.execute(insert(audit).values(at_us=now_us(), **row))


def read_audit(connection: Connection, *, after: int | None, limit: int) -> list[AuditEvent]:
    """Return the first `limit` events of the audit log after this number, in order; with None the
    newest ones."""
    if after is None:
        newest = connection.execute(select(audit).order_by(audit.c.sequence.desc()).limit(limit))
        rows = list(newest)[::-1]
    else:
        query = (
            select(audit).where(audit.c.sequence > after).order_by(audit.c.sequence).limit(limit)
        )
        rows = list(connection.execute(query))
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
