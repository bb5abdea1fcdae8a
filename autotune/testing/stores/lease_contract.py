"""Contract of `LeaseKeeper`: one holder at a time, and no writes with an expired lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import AttemptId, CloseAttempt, EndTrial, KeepTrial, LeasedStore
from autotune.spec import Failure, FailureKind, StudyStatus
from autotune.testing.stores.sample_studies import (
    LONG_S,
    a_study,
    decide,
    kinds,
    launch,
    measured,
    pending,
    reported,
)
from autotune.testing.stores.store_fixture import StoreFixture

LOST = Failure(kind=FailureKind.WORKER_LOST, message="gone")


class LeaseContract(StoreFixture):
    """A study has at most one holder; a larger fencing number is newer."""

    def test_one_holder_at_a_time(self, store: LeasedStore) -> None:
        record = store.submit(a_study(), {})
        first = store.claim(record.id, "a", lease_s=LONG_S)
        assert first is not None
        assert store.claim(record.id, "b", lease_s=LONG_S) is None
        assert store.claim(record.id, "a", lease_s=LONG_S) is None
        longer = store.renew(first, lease_s=2 * LONG_S)
        assert (longer.fence, longer.owner) == (first.fence, first.owner)
        assert longer.expires_at > first.expires_at
        assert store.is_held(record.id)
        store.release(longer)
        second = store.claim(record.id, "b", lease_s=LONG_S)
        assert second is not None
        assert second.fence > first.fence
        store.release(first)
        assert store.claim(record.id, "c", lease_s=LONG_S) is None

    def test_a_lease_that_ran_out_is_taken_over_and_its_writes_are_refused(
        self, store: LeasedStore
    ) -> None:
        record = store.submit(a_study(), {})
        frozen = store.claim(record.id, "frozen", lease_s=0)
        assert frozen is not None
        decide(store, frozen, KeepTrial(trial=pending(0)))
        decide(store, frozen, launch(frozen, 0, 1))
        frozen = store.renew(frozen, lease_s=0)
        lease = store.claim(record.id, "new", lease_s=LONG_S)
        assert lease is not None
        before = store.trials(record.id)
        writes = (
            lambda: decide(store, frozen, KeepTrial(trial=pending(1))),
            lambda: decide(store, frozen, launch(frozen, 0, 2)),
            lambda: store.add_steps(frozen, [reported(AttemptId(record.id, 0, 1), 0, [1.0])]),
            lambda: decide(store, frozen, CloseAttempt(number=0, attempt=1, failure=LOST)),
            lambda: decide(store, frozen, EndTrial(trial=measured(pending(0)))),
            lambda: store.renew(frozen, lease_s=LONG_S),
            lambda: store.set_status(
                record.id, StudyStatus.FAILED, expect=[StudyStatus.QUEUED], lease=frozen
            ),
        )
        for write in writes:
            with pytest.raises(ConflictError, match="no longer held"):
                write()
        assert store.trials(record.id) == before
        assert store.study(record.id).status is StudyStatus.QUEUED
        assert kinds(store, record.id)[-1] == "trial.late", (
            "a measurement from an expired lease is stored as late"
        )
        decide(store, lease, EndTrial(trial=measured(pending(0))))

    def test_many_claimants_and_one_wins(self, store: LeasedStore) -> None:
        record = store.submit(a_study(), {})
        with ThreadPoolExecutor(16) as pool:
            leases = list(
                pool.map(lambda i: store.claim(record.id, f"c{i}", lease_s=LONG_S), range(100))
            )
        assert len([lease for lease in leases if lease]) == 1

    def test_owners_take_turns(self, store: LeasedStore) -> None:
        def submit(owner: str, name: str) -> str:
            return store.submit(a_study(name), {}, owner=owner).id

        a, b, c = (
            [submit("ann", f"a{i}") for i in range(4)],
            [submit("bob", "b0")],
            [submit("cy", "c0")],
        )
        assert [study for study, _ in store.waiting()] == [a[0], b[0], c[0], *a[1:]]
        assert [record.id for record in store.claimable(limit=4)] == [a[0], b[0], c[0], a[1]]
        lease = store.claim(a[0], "c", lease_s=LONG_S)
        assert lease is not None
        store.set_status(a[0], StudyStatus.RUNNING, lease=lease, expect=[StudyStatus.QUEUED])
        assert store.waiting() == [
            (b[0], "bob"),
            (c[0], "cy"),
            *((study, "ann") for study in a[1:]),
        ]
        store.set_status(a[0], StudyStatus.CANCELLED, lease=lease, expect=[StudyStatus.RUNNING])
        store.release(lease)
        later = submit("bob", "b1")
        assert [study for study, _ in store.waiting()] == [b[0], c[0], a[1], later, *a[2:]], (
            "the owner who had the latest turn comes last"
        )

    def test_what_ran_before_goes_on_before_others_begin(self, store: LeasedStore) -> None:
        first, second = (store.submit(a_study(name), {}, owner="ann") for name in ("a", "b"))
        lease = store.claim(second.id, "c", lease_s=LONG_S)
        assert lease is not None
        store.set_status(second.id, StudyStatus.RUNNING, lease=lease, expect=[StudyStatus.QUEUED])
        store.renew(lease, lease_s=0)
        assert [record.id for record in store.claimable()] == [second.id, first.id]

    def test_what_waits_can_be_claimed(self, store: LeasedStore) -> None:
        first, second = (store.submit(a_study(name), {}) for name in ("a", "b"))
        assert [r.id for r in store.claimable()] == [first.id, second.id]
        lease = store.claim(first.id, "c", lease_s=LONG_S)
        assert lease is not None
        assert [r.id for r in store.claimable()] == [second.id]
        store.renew(lease, lease_s=0)
        assert [r.id for r in store.claimable()] == [first.id, second.id]
        assert not store.is_held(first.id), "the lease expired"
        store.set_status(second.id, StudyStatus.PAUSED, expect=[StudyStatus.QUEUED])
        store.set_status(first.id, StudyStatus.CANCELLED, expect=[StudyStatus.QUEUED])
        assert store.claimable() == []
        with pytest.raises(ConflictError):
            store.claim(first.id, "c", lease_s=LONG_S)
        with pytest.raises(NotFoundError):
            store.claim("nobody", "c", lease_s=LONG_S)

    def test_the_holder_is_named_until_the_lease_is_given_back(self, store: LeasedStore) -> None:
        record = store.submit(a_study(), {})
        assert store.holder(record.id) is None
        lease = store.claim(record.id, "a", lease_s=0)
        assert lease is not None
        held = store.holder(record.id)
        assert held is not None, "also after the lease expired"
        assert (held.owner, held.fence) == ("a", lease.fence)
        store.release(lease)
        assert store.holder(record.id) is None
        assert not store.is_held(record.id)
        with pytest.raises(NotFoundError):
            store.holder("nobody")
