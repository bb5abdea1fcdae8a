"""Contract of `TrialWriter.keep_decision`: a decision is written once, and as a whole or not at
all."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import (
    AttemptId,
    CloseAttempt,
    Decision,
    EndTrial,
    Fact,
    KeepSteps,
    KeepTrial,
    LeasedStore,
)
from autotune.spec import Failure, FailureKind, StudyStatus, TrialStatus, Wanted
from autotune.testing.stores.sample_studies import (
    LONG_S,
    kinds,
    launch,
    measured,
    pending,
    reported,
    running_study,
)
from autotune.testing.stores.store_fixture import StoreFixture

LOST = Failure(kind=FailureKind.WORKER_LOST, message="gone")


def decision(number: int, *facts: Fact, **changes: Any) -> Decision:
    """A decision with this number, caused by a tick."""
    return Decision(number=number, cause={"event": "Tick"}, facts=facts, **changes)


class DecisionContract(StoreFixture):
    """The facts of a decision are written together."""

    def test_a_decision_is_kept_once_and_as_a_whole(self, store: LeasedStore) -> None:
        lease = running_study(store)
        first = decision(1, KeepTrial(trial=pending(0)), launch(lease, 0, 1))
        steps = KeepSteps(steps=reported(AttemptId(lease.study, 0, 1), 0, [1.0, 2.0]))
        close = CloseAttempt(number=0, attempt=1, failure=LOST)
        second = decision(2, steps, close, launch(lease, 0, 2))
        end = EndTrial(trial=measured(pending(0)))
        third = decision(
            3,
            end,
            KeepTrial(trial=pending(1)),
            fields={"elapsed_s": 4.5, "result": {"phase": "search"}},
        )
        for each in (first, second, third):
            for _ in range(2):  # the acknowledgement was lost
                store.keep_decision(lease, each)
        record = store.study(lease.study)
        assert (record.decisions, record.elapsed_s, record.result) == (3, 4.5, {"phase": "search"})
        states = [(trial.status, trial.attempts) for trial in store.trials(lease.study)]
        assert states == [(TrialStatus.COMPLETED, 2), (TrialStatus.PENDING, 0)]
        assert store.steps(lease.study, 0, attempt=1)["step_time_s"] == [1.0, 2.0]
        history = kinds(store, lease.study)
        assert history[3:] == [
            *("study.decided", "trial.asked", "trial.started"),
            *("study.decided", "attempt.ended", "trial.started"),
            *("study.decided", "trial.ended", "trial.asked"),
        ]

    def test_of_a_decision_that_cannot_be_kept_nothing_is_kept(self, store: LeasedStore) -> None:
        lease = running_study(store)
        before = (store.study(lease.study), kinds(store, lease.study))
        beyond = decision(
            1, KeepTrial(trial=pending(0)), KeepTrial(trial=pending(2)), fields={"elapsed_s": 9.0}
        )
        unwanted = decision(
            1, KeepTrial(trial=pending(0)), status=StudyStatus.PAUSED, wanted=Wanted.PAUSE
        )
        for refused in (beyond, unwanted, decision(2, KeepTrial(trial=pending(0)))):
            with pytest.raises(ConflictError):
                store.keep_decision(lease, refused)
        with pytest.raises((ConflictError, NotFoundError)):
            store.keep_decision(
                lease, decision(1, KeepTrial(trial=pending(0)), launch(lease, 7, 1))
            )
        assert (store.study(lease.study), kinds(store, lease.study)) == before
        assert store.trials(lease.study) == []
        store.want(lease.study, Wanted.PAUSE)
        store.keep_decision(lease, unwanted)
        assert store.study(lease.study).status is StudyStatus.PAUSED

    def test_who_lost_the_lease_decides_nothing_and_its_measurements_are_late(
        self, store: LeasedStore
    ) -> None:
        lease = running_study(store)
        store.keep_decision(lease, decision(1, KeepTrial(trial=pending(0)), launch(lease, 0, 1)))
        store.release(lease)
        assert store.claim(lease.study, "another", lease_s=LONG_S) is not None
        late = decision(2, EndTrial(trial=measured(pending(0))), KeepTrial(trial=pending(1)))
        with pytest.raises(ConflictError):
            store.keep_decision(lease, late)
        assert [t.status for t in store.trials(lease.study)] == [TrialStatus.RUNNING]
        assert kinds(store, lease.study)[-1] == "trial.late"
        assert store.study(lease.study).decisions == 1
