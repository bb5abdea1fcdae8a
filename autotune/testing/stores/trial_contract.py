"""Contract of `TrialWriter`: trials, attempts and steps under a lease."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import AttemptId, CloseAttempt, EndTrial, KeepTrial, LeasedStore
from autotune.spec import (
    Failure,
    FailureKind,
    ParallelConfig,
    StandsFor,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.testing.stores.sample_studies import (
    LONG_S,
    a_study,
    decide,
    failed,
    kinds,
    kinds_without_decisions,
    launch,
    measured,
    pending,
    reported,
    run_trial,
    running_study,
)
from autotune.testing.stores.store_fixture import StoreFixture

LOST = Failure(kind=FailureKind.WORKER_LOST, message="gone")


class TrialContract(StoreFixture):
    """A trial is created, started and ended once, and never changes after its end."""

    # -- trials

    def test_a_trial_comes_back_as_it_ended(self, store: LeasedStore) -> None:
        lease = running_study(store)
        asked = pending(0, purpose=TrialPurpose.BASELINE)
        decide(store, lease, KeepTrial(trial=asked))
        (kept,) = store.trials(lease.study)
        assert kept.created_at is not None
        assert kept == replace(asked, study=lease.study, created_at=kept.created_at)
        decide(store, lease, launch(lease, 0, 1))
        (kept,) = store.trials(lease.study)
        assert (kept.status, kept.attempts) == (TrialStatus.RUNNING, 1)
        assert kept.started_at is not None
        end = measured(asked)
        decide(store, lease, EndTrial(trial=end))
        (ended,) = store.trials(lease.study)
        expected = replace(
            end, study=lease.study, created_at=kept.created_at, started_at=kept.started_at
        )
        assert repr(ended) == repr(expected)  # nan is not equal to itself, its text is
        assert store.study(lease.study).trial_counts == {"COMPLETED": 1}
        assert kinds_without_decisions(store, lease.study)[-3:] == [
            "trial.asked",
            "trial.started",
            "trial.ended",
        ]

    def test_events_name_each_trial_that_changed(self, store: LeasedStore) -> None:
        lease = running_study(store)
        known, seen = dict[int, Trial](), 0

        def read_again() -> set[int]:
            nonlocal seen
            new = store.events(lease.study, after=seen)
            seen += len(new)
            named = {
                event.data["number"]
                for event in new
                if event.kind.startswith(("trial.", "attempt."))
            }
            known.update({t.number: t for t in store.trials(lease.study, numbers=named)})
            # nan is not equal to itself
            assert repr(list(known.values())) == repr(store.trials(lease.study))
            return named

        for number in range(4):
            decide(store, lease, KeepTrial(trial=pending(number)))
        assert read_again() == {0, 1, 2, 3}
        decide(store, lease, launch(lease, 2, 1))
        assert read_again() == {2}
        decide(store, lease, CloseAttempt(number=2, attempt=1, failure=LOST), launch(lease, 2, 2))
        assert read_again() == {2}
        decide(store, lease, EndTrial(trial=measured(pending(2))))
        assert read_again() == {2}
        store.record_event(lease.study, "study.note", {"number": 3})
        assert read_again() == set()
        store.set_status(
            lease.study, StudyStatus.CANCELLED, expect=[StudyStatus.RUNNING], lease=lease
        )
        assert read_again() == {0, 1, 3}
        assert store.trials(lease.study, numbers=[7]) == []

    def test_a_proxy_comes_back_with_what_it_stands_for(self, store: LeasedStore) -> None:
        target = a_study(num_gpus=64)
        here = replace(target.workload, cluster=a_study().workload.cluster, global_batch_size=16)
        lease = running_study(store, target)
        stands_for = StandsFor(config=ParallelConfig(dp=64), workload=here)
        end = measured(pending(0, purpose=TrialPurpose.PROXY, stands_for=stands_for))
        run_trial(store, lease, end)
        (kept,) = store.trials(lease.study)
        assert kept.stands_for == stands_for
        assert kept.is_measured

    def test_a_failure_keeps_its_evidence(self, store: LeasedStore) -> None:
        lease = running_study(store)
        end = failed(pending(0))
        run_trial(store, lease, end)
        (kept,) = store.trials(lease.study)
        assert kept.failure == end.failure
        assert store.study(lease.study).trial_counts == {"FAILED": 1}

    def test_a_terminal_trial_never_changes(self, store: LeasedStore) -> None:
        lease = running_study(store)
        ends: list[Trial] = [
            measured(pending(0)),
            failed(pending(1)),
            replace(pending(2), status=TrialStatus.CANCELLED),
        ]
        for end in ends:
            run_trial(store, lease, end)
        before = repr(store.trials(lease.study))
        for end in ends:
            for second in (measured(end, step_time_s=0.01), failed(end)):
                decide(store, lease, EndTrial(trial=second))
            with pytest.raises(ConflictError):
                decide(store, lease, launch(lease, end.number, 2))
        assert repr(store.trials(lease.study)) == before
        assert kinds(store, lease.study).count("trial.late") == 6

    def test_numbers_have_no_gaps_and_asking_twice_is_asking_once(self, store: LeasedStore) -> None:
        lease = running_study(store)
        with pytest.raises(ConflictError, match="without gaps"):
            decide(store, lease, KeepTrial(trial=pending(1)))
        decide(store, lease, KeepTrial(trial=pending(0)))
        decide(store, lease, KeepTrial(trial=pending(0)))
        with pytest.raises(ConflictError):
            decide(store, lease, KeepTrial(trial=pending(0, ParallelConfig(tp=2))))
        decide(store, lease, launch(lease, 0, 1))
        decide(store, lease, launch(lease, 0, 1))
        assert kinds_without_decisions(store, lease.study)[-2:] == ["trial.asked", "trial.started"]
        with pytest.raises(NotFoundError):
            decide(store, lease, launch(lease, 1, 1))

    def test_a_running_attempt_is_adopted_by_the_next_holder_once(self, store: LeasedStore) -> None:
        first = running_study(store)
        decide(store, first, KeepTrial(trial=pending(0)))
        with pytest.raises(NotFoundError):
            store.adopt_attempt(first, 0, 1)
        decide(store, first, launch(first, 0, 1))
        store.adopt_attempt(first, 0, 1)
        assert "trial.adopted" not in kinds(store, first.study), "it is the holder's own"
        store.release(first)
        second = store.claim(first.study, "second", lease_s=LONG_S)
        assert second is not None
        with pytest.raises(ConflictError):
            store.adopt_attempt(first, 0, 1)
        store.adopt_attempt(second, 0, 1)
        store.adopt_attempt(second, 0, 1)
        assert kinds(store, first.study).count("trial.adopted") == 1
        store.add_steps(second, [reported(AttemptId(first.study, 0, 1), 0, [0.1, 0.2])])
        decide(store, second, EndTrial(trial=measured(pending(0))))
        with pytest.raises(ConflictError, match="is not running"):
            store.adopt_attempt(second, 0, 1)

    def test_a_lost_attempt_is_followed_by_the_next(self, store: LeasedStore) -> None:
        lease = running_study(store)
        decide(store, lease, KeepTrial(trial=pending(0)))
        with pytest.raises(ConflictError, match="next attempt"):
            decide(store, lease, launch(lease, 0, 2))
        decide(store, lease, launch(lease, 0, 1))
        with pytest.raises(ConflictError, match="still running"):
            decide(store, lease, launch(lease, 0, 2))
        decide(store, lease, CloseAttempt(number=0, attempt=1, failure=LOST))
        decide(store, lease, CloseAttempt(number=0, attempt=1, failure=LOST))
        decide(store, lease, launch(lease, 0, 2))
        decide(store, lease, EndTrial(trial=measured(pending(0))))
        (kept,) = store.trials(lease.study)
        assert (kept.status, kept.attempts) == (TrialStatus.COMPLETED, 2)
        assert kinds_without_decisions(store, lease.study)[-4:] == [
            "trial.started",
            "attempt.ended",
            "trial.started",
            "trial.ended",
        ]

    def test_only_ends_that_make_sense_are_kept(self, store: LeasedStore) -> None:
        lease = running_study(store)
        decide(store, lease, KeepTrial(trial=pending(0)))
        with pytest.raises(ConflictError, match="never started"):
            decide(store, lease, EndTrial(trial=measured(pending(0))))
        decide(store, lease, launch(lease, 0, 1))
        bad: Sequence[Trial] = (
            replace(pending(0), status=TrialStatus.RUNNING),
            replace(pending(0), status=TrialStatus.COMPLETED),
            replace(pending(0), status=TrialStatus.FAILED),
            measured(pending(0, ParallelConfig(tp=4))),
        )
        for trial in bad:
            with pytest.raises(ConflictError):
                decide(store, lease, EndTrial(trial=trial))
        with pytest.raises(NotFoundError):
            decide(store, lease, EndTrial(trial=measured(pending(5))))
        decide(store, lease, KeepTrial(trial=pending(1)))
        decide(store, lease, EndTrial(trial=replace(pending(1), status=TrialStatus.INFEASIBLE)))

    # -- steps

    def test_steps_are_kept_once_and_in_order(self, store: LeasedStore) -> None:
        lease = running_study(store)
        decide(store, lease, KeepTrial(trial=pending(0)))
        assert store.steps(lease.study, 0) == {
            "step": [],
            "step_time_s": [],
            "loss": [],
            "grad_norm": [],
        }
        decide(store, lease, launch(lease, 0, 1))
        name = AttemptId(lease.study, 0, 1)
        store.add_steps(
            lease,
            [
                reported(name, 2, [0.3]),
                reported(name, 0, [0.1, 0.2]),
            ],
        )
        store.add_steps(lease, [reported(name, 1, [9.0, 9.0, math.inf])])
        store.add_steps(lease, [])
        expected = {
            "step": [0, 1, 2, 3],
            "step_time_s": [0.1, 0.2, 0.3, math.inf],
            "loss": [1.1, 1.2, 1.3, math.inf],
            "grad_norm": [2.1, 2.2, 2.3, math.inf],
        }
        assert store.steps(lease.study, 0) == expected
        decide(store, lease, CloseAttempt(number=0, attempt=1, failure=LOST))
        decide(store, lease, launch(lease, 0, 2))
        assert store.steps(lease.study, 0)["step"] == []
        assert store.steps(lease.study, 0, attempt=1) == expected
        with pytest.raises(NotFoundError):
            store.steps(lease.study, 0, attempt=3)
        with pytest.raises(NotFoundError):
            store.add_steps(lease, [reported(AttemptId(lease.study, 1, 1), 0, [1.0])])
        with pytest.raises(ConflictError):
            store.add_steps(lease, [reported(AttemptId("other", 0, 1), 0, [1.0])])
