"""What the service keeps in a store beyond studies: access tokens, the audit of who did what,
counts for dashboards.

TokenStore      who may ask            AuditLog        who did what
StoreMonitor    counts, and whether the store can be written now
ServiceStore    `Store` and all of these: what `autotune.service.create_app` asks for
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from autotune.ports.annotations import AnnotationStore
from autotune.ports.study_store import Store

SCOPES = ("read", "submit", "run", "admin")
"""What a token allows; each scope includes those before it. `run`: specs may name programs, where
the service allows any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as the store keeps it: everything but its secret."""

    id: str
    """by which it is revoked; no secret"""
    owner: str
    """whose requests it vouches for"""
    scope: str
    """read, submit or admin"""
    created_at: datetime
    """when it was made"""
    expires_at: datetime | None
    """None: never"""
    revoked_at: datetime | None = None
    """None: it was not"""

    def is_valid_at(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One line of the audit."""

    sequence: int
    """rises; gaps mean that a write was undone"""
    at: datetime
    """when it was written"""
    actor: str
    """owner of the token, or `loopback`"""
    action: str
    """e.g. study.submit, study.cancel, token.create, refused"""
    subject: str
    """id of the study or token"""
    data: Mapping[str, Any]
    """what else there is to say, plain values"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How many there are."""

    studies: Mapping[str, int]
    """studies by status"""
    trials: Mapping[str, int]
    """trials by status"""
    failures: Mapping[str, int]
    """failed trials by kind"""
    leased: int
    """studies that somebody holds now"""


class TokenStore(Protocol):
    """Makes, checks and revokes tokens. Threads may share it."""

    def create(
        self, owner: str, scope: str, *, expires_in_s: float | None = None
    ) -> tuple[Token, str]:
        """A new token and its text, which nobody can show again. Raises `SpecError` for an unknown
        scope or a lifetime below zero."""
        ...

    def check(self, text: str) -> Token | None:
        """The token of that text; None when it is unknown, wrong, expired or revoked."""
        ...

    def revoke(self, token_id: str) -> Token:
        """The token, of no use from now on. Raises `NotFoundError`."""
        ...

    def list(self) -> Sequence[Token]:
        """All tokens, oldest first."""
        ...


class AuditLog(Protocol):
    """Who did what through the service: append-only."""

    def record_audit(
        self, actor: str, action: str, subject: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        """Adds a line to the audit."""
        ...

    def audit_events(self, *, after: int | None = None, limit: int = 1000) -> list[AuditEvent]:
        """The newest lines of the audit, or the first ones after that number, in order."""
        ...


class StoreMonitor(Protocol):
    """What operators ask of a store."""

    def statistics(self) -> Statistics:
        """Studies and trials by status, failures by kind."""
        ...

    def ping(self) -> None:
        """Changes nothing. Raises `StoreUnavailableError` when the store cannot be written now."""
        ...


class ServiceStore(Store, AuditLog, StoreMonitor, Protocol):
    """All that the service needs."""

    @property
    def annotations(self) -> AnnotationStore:
        """Notes and tags of studies."""
        ...

    @property
    def tokens(self) -> TokenStore:
        """The access tokens."""
        ...
