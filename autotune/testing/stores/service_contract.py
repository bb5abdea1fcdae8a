"""Contract of `ServiceStore` beyond `Store`: tokens, audit log, counts."""

from __future__ import annotations

import math

import pytest

from autotune.errors import NotFoundError, SpecError
from autotune.ports import KeepTrial, ServiceStore
from autotune.testing.stores.annotation_contract import AnnotationContract
from autotune.testing.stores.sample_studies import (
    a_study,
    decide,
    failed,
    measured,
    pending,
    run_trial,
    running_study,
)


class ServiceStoreContract(AnnotationContract):
    """Tokens are recognized only by their text, the audit log is read in order, and counts are
    current."""

    def test_a_token_is_known_by_its_text_alone(self, store: ServiceStore) -> None:
        token, text = store.tokens.create("ada", "submit")
        assert store.tokens.check(text) == token
        assert store.tokens.check(text) == token, "also when it is remembered"
        wrong = text[:-1] + ("a" if text[-1] != "a" else "b")
        stranger = f"at_{'0' * 12}_{text.rpartition('_')[2]}"
        for other in (
            wrong,
            text + "x",
            text[:-1],
            stranger,
            "",
            "at__",
            "at_x_y",
            "\ud800",
            "x" * 9999,
        ):
            assert store.tokens.check(other) is None
        with pytest.raises(SpecError):
            store.tokens.create("ada", "everything")
        with pytest.raises(SpecError):
            store.tokens.create("ada", "read", expires_in_s=0)

    def test_a_revoked_or_expired_token_is_of_no_use_at_once(self, store: ServiceStore) -> None:
        token, text = store.tokens.create("ada", "admin", expires_in_s=3600)
        assert store.tokens.check(text) is not None
        assert store.tokens.revoke(token.id).revoked_at is not None
        assert store.tokens.check(text) is None
        _, short = store.tokens.create("ada", "read", expires_in_s=1e-6)
        assert store.tokens.check(short) is None
        assert [kept.owner for kept in store.tokens.list()] == ["ada", "ada"]
        with pytest.raises(NotFoundError):
            store.tokens.revoke("nobody")

    def test_the_audit_is_read_in_order(self, store: ServiceStore) -> None:
        for number in range(3):
            store.record_audit("ada", "study.submit", f"s{number}", {"n": number, "x": math.nan})
        lines = store.audit_events()
        assert [(line.actor, line.action, line.subject) for line in lines] == [
            ("ada", "study.submit", f"s{n}") for n in range(3)
        ]
        assert lines[2].data == {"n": 2, "x": None}
        assert store.audit_events(after=lines[1].sequence) == lines[2:]
        assert store.audit_events(limit=2) == lines[1:]
        assert store.audit_events(after=0, limit=2) == lines[:2]

    def test_statistics_count_studies_trials_and_failures(self, store: ServiceStore) -> None:
        lease = running_study(store)
        run_trial(store, lease, measured(pending(0)))
        run_trial(store, lease, failed(pending(1)))
        decide(store, lease, KeepTrial(trial=pending(2)))
        store.submit(a_study("waits", model="other"), {})
        counts = store.statistics()
        assert counts.studies == {"RUNNING": 1, "QUEUED": 1}
        assert counts.trials == {"COMPLETED": 1, "FAILED": 1, "PENDING": 1}
        assert counts.failures == {"OUT_OF_MEMORY": 1}
        assert counts.leased == 1
        store.ping()
