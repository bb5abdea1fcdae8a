"""Roles of a store that only the service needs: access tokens, an audit log, counts for dashboards.

TokenStore      access tokens          AuditLog        who did what
StoreMonitor    counts, and whether the store is writable
ServiceStore    `Store` with all of these, required by `autotune.service.create_app`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from autotune.ports.annotations import AnnotationStore
from autotune.ports.study_store import Store

SCOPES = ("read", "submit", "run", "admin")
"""scopes of a token; each includes those before it. `run` allows specs that start programs, if the
service allows that"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A stored token, without its secret."""

    id: str
    """identifies the token for revocation; not secret"""
    owner: str
    """user whose requests it authenticates"""
    scope: str
    """one of `SCOPES`"""
    created_at: datetime
    """when it was created"""
    expires_at: datetime | None
    """None: never"""
    revoked_at: datetime | None = None
    """None: not revoked"""

    def is_valid_at(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """An entry of the audit log."""

    sequence: int
    """increasing; gaps come from rolled back transactions"""
    at: datetime
    """when it was written"""
    actor: str
    """owner of the token, or `loopback`"""
    action: str
    """e.g. study.submit, study.cancel, token.create, refused"""
    subject: str
    """id of the study or token"""
    data: Mapping[str, Any]
    """further details, plain values"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Numbers of studies, trials and failures."""

    studies: Mapping[str, int]
    """studies by status"""
    trials: Mapping[str, int]
    """trials by status"""
    failures: Mapping[str, int]
    """failed trials by kind"""
    leased: int
    """studies with a valid lease"""


class TokenStore(Protocol):
    """Creates, checks and revokes tokens. Thread-safe."""

    def create(
        self, owner: str, scope: str, *, expires_in_s: float | None = None
    ) -> tuple[Token, str]:
        """Create a token. Returns it with its secret text, which is not stored. Raises `SpecError`
        for an unknown scope or a negative lifetime."""
        ...

    def check(self, text: str) -> Token | None:
        """The token with this secret text; None if it is unknown, malformed, expired or revoked."""
        ...

    def revoke(self, token_id: str) -> Token:
        """Revoke a token and return it. Raises `NotFoundError` for an unknown id."""
        ...

    def list(self) -> Sequence[Token]:
        """All tokens, oldest first."""
        ...


class AuditLog(Protocol):
    """An append-only log of who did what through the service."""

    def record_audit(
        self, actor: str, action: str, subject: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        """Add an entry."""
        ...

    def audit_events(self, *, after: int | None = None, limit: int = 1000) -> list[AuditEvent]:
        """Entries in order: the newest `limit`, or the first `limit` with a sequence number above
        `after`."""
        ...


class StoreMonitor(Protocol):
    """Health and statistics of a store."""

    def statistics(self) -> Statistics:
        """Numbers of studies and trials by status, and of failures by kind."""
        ...

    def ping(self) -> None:
        """Check that the store is writable, without changing it. Raises `StoreUnavailableError`."""
        ...


class ServiceStore(Store, AuditLog, StoreMonitor, Protocol):
    """A store with all roles that the service needs."""

    @property
    def annotations(self) -> AnnotationStore:
        """Notes and tags of studies."""
        ...

    @property
    def tokens(self) -> TokenStore:
        """The access tokens."""
        ...
