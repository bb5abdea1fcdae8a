"""Tokens, audit, calibrations, reference losses, statistics: what the service and the cost model keep in the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from autotune.errors import NotFoundError, SpecError
from autotune.store import MemoryStore, SqlStore, open_store
from autotune.store.tables import tokens
from autotune.testing.stores import a_study, failed, measured, pending, run_trial, running_study


@pytest.fixture(params=["memory", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[SqlStore]:
    if request.param == "postgresql":
        new_database: Callable[[], str] = request.getfixturevalue("new_database")
        store: SqlStore = open_store(new_database())
    else:
        store = MemoryStore()
    yield store
    store.close()


def test_a_token_is_known_by_its_text_alone(store: SqlStore) -> None:
    token, text = store.tokens.create("ada", "submit")
    assert store.tokens.check(text) == token
    assert store.tokens.check(text) == token, "also when it is remembered"
    wrong = text[:-1] + ("a" if text[-1] != "a" else "b")
    for other in (
        wrong,
        text + "x",
        text[:-1],
        f"at_{'0' * 12}_{text.rpartition('_')[2]}",
        "",
        "at__",
        "at_x_y",
        "\ud800",
        "x" * 9999,
    ):
        assert store.tokens.check(other) is None
    with store.database.read() as connection:
        row = connection.execute(tokens.select()).one()
    secret = text.split("_", 2)[2]
    assert secret not in repr(row._mapping)
    assert len(row.hash) == 32


def test_a_revoked_or_expired_token_is_of_no_use_at_once(store: SqlStore) -> None:
    token, text = store.tokens.create("ada", "admin", expires_in_s=3600)
    assert store.tokens.check(text) is not None
    assert store.tokens.revoke(token.id).revoked_at is not None
    assert store.tokens.check(text) is None
    _, short = store.tokens.create("ada", "read", expires_in_s=1e-6)
    assert store.tokens.check(short) is None
    assert [kept.owner for kept in store.tokens.list()] == ["ada", "ada"]
    with pytest.raises(NotFoundError):
        store.tokens.revoke("nobody")
    for scope, lifetime in (("root", None), ("read", 0.0), ("read", -1.0), ("read", math.nan)):
        with pytest.raises(SpecError):
            store.tokens.create("ada", scope, expires_in_s=lifetime)


def test_the_audit_is_read_in_order(store: SqlStore) -> None:
    for number in range(3):
        store.record_audit("ada", "study.submit", f"s{number}", {"n": number, "x": math.nan})
    lines = store.audit_events()
    assert [(line.actor, line.action, line.subject) for line in lines] == [
        ("ada", "study.submit", f"s{n}") for n in range(3)
    ]
    assert lines[2].data == {"n": 2, "x": None}
    assert store.audit_events(after=lines[1].sequence) == lines[2:]


def test_calibrations_are_kept_by_cluster_and_trainer(store: SqlStore) -> None:
    assert store.calibration(cluster="c", trainer="native") is None
    store.save_calibration("c", "native", {"matmul": 0.5})
    store.save_calibration("c", "native", {"matmul": 0.75, "links": {"intra": 1e9}})
    store.save_calibration("c", "megatron", {"matmul": 0.1})
    assert store.calibration(cluster="c", trainer="native") == {"matmul": 0.75, "links": {"intra": 1e9}}


def test_the_longest_reference_is_kept(store: SqlStore) -> None:
    assert store.reference_losses("m", "d", 0) is None
    store.save_reference_losses("m", "d", 0, [5.5, math.inf])
    store.save_reference_losses("m", "d", 0, [1.0])
    store.save_reference_losses("m", "d", 1, [2.0])
    assert store.reference_losses("m", "d", 0) == (5.5, math.inf)
    assert store.reference_losses("m", "d", 1) == (2.0,)


def test_statistics_count_studies_trials_and_failures(store: SqlStore) -> None:
    lease = running_study(store)
    run_trial(store, lease, measured(pending(0)))
    run_trial(store, lease, failed(pending(1)))
    store.add_trial(lease, pending(2))
    store.submit(a_study("waits", model="other"), {})
    counts = store.statistics()
    assert counts.studies == {"RUNNING": 1, "QUEUED": 1}
    assert counts.trials == {"COMPLETED": 1, "FAILED": 1, "PENDING": 1}
    assert counts.failures == {"OUT_OF_MEMORY": 1}
    assert counts.leased == 1
    (known,) = store.known_workloads()
    assert (known.workload, known.configs, known.trials) == (a_study().workload, 1, 1)
    assert [trial.number for _, trial in store.best(workload=known.key)] == [0]
    holder = store.holder(lease.study)
    assert holder is not None
    assert (holder.owner, holder.fence) == (lease.owner, lease.fence)
    store.release(lease)
    assert store.holder(lease.study) is None
    store.ping()
