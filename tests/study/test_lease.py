from __future__ import annotations

import threading
from typing import Any

import pytest

from autotune.errors import ConflictError, StoreUnavailableError
from autotune.ports import EndTrial, KeepTrial, Store
from autotune.spec import StudyStatus, Trial, TrialStatus
from autotune.study.lease import StudyLease
from autotune.testing.stores import launch
from tests.study.controller.world import CONFIGS, measured, study

LONG_S = 60.0


class Away:
    """A store whose database is away for the next so many calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls_away = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.calls_away > 0:
                self.calls_away -= 1
                raise StoreUnavailableError("the database is away")
            return method(*args, **kwargs)

        return call


@pytest.fixture
def study_id(store: Store) -> str:
    return store.submit(study(), {}).id


def test_a_write_waits_for_the_database_and_says_so_once(store: Store, study_id: str) -> None:
    away, heard = Away(store), []
    with StudyLease.claim(away, study_id, lease_s=LONG_S, on_trouble=heard.append) as lease:
        lease.decide({}, [])  # from here on it supports the number of the next one
        away.calls_away = 3
        lease.decide({}, [KeepTrial(trial=Trial(config=CONFIGS[0]))])
    assert len(heard) == 1
    assert len(store.trials(study_id)) == 1


def test_patience_ends(store: Store, study_id: str) -> None:
    away = Away(store)
    with StudyLease.claim(away, study_id, lease_s=LONG_S, patience_s=0.2) as lease:
        lease.decide({}, [])
        away.calls_away = 10**6
        with pytest.raises(StoreUnavailableError):
            lease.decide({}, [KeepTrial(trial=Trial(config=CONFIGS[0]))])
        away.calls_away = 0


def test_nobody_waits_who_was_interrupted(store: Store, study_id: str) -> None:
    away = Away(store)
    with StudyLease.claim(
        away, study_id, lease_s=LONG_S, patience_s=1e6, impatient=lambda: True
    ) as lease:
        away.calls_away = 1
        with pytest.raises(StoreUnavailableError):
            lease.record()


def test_a_glance_at_a_store_that_is_away_sees_nothing(store: Store, study_id: str) -> None:
    away = Away(store)
    with StudyLease.claim(away, study_id, lease_s=LONG_S) as lease:
        away.calls_away = 1
        assert lease.glance() is None
        assert lease.glance() is not None


def test_the_lease_is_kept_alive_beyond_its_length(store: Store, study_id: str) -> None:
    renewed = threading.Event()

    class Counting(Away):
        def renew(self, lease: Any, *, lease_s: float) -> Any:
            renewed.set()
            return store.renew(lease, lease_s=lease_s)

    with StudyLease.claim(Counting(store), study_id, lease_s=1.0) as lease:
        assert renewed.wait(LONG_S)
        lease.come_round()


def test_a_lease_that_was_taken_over_is_noticed(store: Store, study_id: str) -> None:
    with StudyLease.claim(store, study_id, lease_s=0.2) as lease:
        store.release(lease._lease)
        assert store.claim(study_id, "another", lease_s=LONG_S) is not None
        assert lease.fenced.wait(LONG_S)
        with pytest.raises(ConflictError, match="taken over"):
            lease.come_round()
        with pytest.raises(ConflictError):
            lease.decide({}, [KeepTrial(trial=Trial(config=CONFIGS[0]))])
        with pytest.raises(ConflictError):
            lease.move(StudyStatus.RUNNING)
    assert store.trials(study_id) == []


def test_leaving_gives_the_lease_back(store: Store, study_id: str) -> None:
    with StudyLease.claim(store, study_id, lease_s=LONG_S):
        assert store.claim(study_id, "another", lease_s=LONG_S) is None
    assert store.claim(study_id, "another", lease_s=LONG_S) is not None


def test_a_loop_that_never_comes_round_is_not_kept_alive(store: Store, study_id: str) -> None:
    with StudyLease.claim(store, study_id, lease_s=0.3, stall_s=0.0):
        taken = None
        while taken is None:  # bounded by the test's own time limit
            taken = store.claim(study_id, "another", lease_s=LONG_S)
    assert taken.fence == 2


def test_trials_come_in_the_order_in_which_they_ended(store: Store, study_id: str) -> None:
    with StudyLease.claim(store, study_id, lease_s=LONG_S) as lease:
        lease.decide(
            {},
            [KeepTrial(trial=Trial(config=CONFIGS[number], number=number)) for number in range(4)],
        )
        lease.decide({}, [launch(lease._lease, number, 1) for number in (0, 1, 2)])
        for number in (2, 0):
            ended = Trial(
                config=CONFIGS[number],
                number=number,
                status=TrialStatus.COMPLETED,
                measurement=measured(CONFIGS[number]),
            )
            lease.decide({}, [EndTrial(trial=ended)])
        assert [t.number for t in lease.told_in_order()] == [2, 0, 1, 3]


def test_moving_a_study_that_ended_leaves_it(store: Store, study_id: str) -> None:
    with StudyLease.claim(store, study_id, lease_s=LONG_S) as lease:
        store.set_status(
            study_id, StudyStatus.CANCELLED, expect=[StudyStatus.QUEUED], lease=lease._lease
        )
        assert lease.move(StudyStatus.RUNNING).status is StudyStatus.CANCELLED
