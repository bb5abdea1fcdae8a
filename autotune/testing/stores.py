"""What every store must keep. Inherit from `StoreContract` and provide the `store` fixture:

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self): ...                          # a fresh, empty store; closed by the fixture

`a_study`, `pending`, `measured`, `failed` and `run_trial` make what a store keeps; other rooms' tests may use them too.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import AttemptId, Lease, StepsReported, Store
from autotune.spec import (
    Budget,
    ClusterSpec,
    Estimate,
    Failure,
    FailureKind,
    GpuSpec,
    Measurement,
    MemoryParts,
    ModelSpec,
    ParallelConfig,
    Reward,
    SpaceSpec,
    Study,
    StudyStatus,
    TimeParts,
    Trial,
    TrialPurpose,
    TrialStatus,
    Workload,
)

LONG_S = 3600.0
"""A lease that outlives every test."""


def a_study(name: str = "study", *, model: str = "tiny", num_gpus: int = 8, trainer: str = "native") -> Study:
    """A small study; equal arguments give equal studies."""
    gpu = GpuSpec(name="gpu", memory_bytes=80e9, peak_flops_per_s={"bf16": 1e15}, memory_bytes_per_s=3e12)
    workload = Workload(
        model=ModelSpec(name=model, num_layers=4, hidden_size=256, num_attention_heads=4, vocab_size=1000),
        cluster=ClusterSpec(name=f"gpu-1x{num_gpus}", gpu=gpu, num_nodes=1, gpus_per_node=num_gpus),
        seq_len=1024,
        global_batch_size=(32, 64),
        trainer=trainer,
    )
    return Study(
        name=name,
        workload=workload,
        space=SpaceSpec(knobs={"tp": (1, 2, 4), "precision": ("bf16",), "compile": (False, True)}, world_sizes=(8,)),
        budget=Budget(max_trials=7, max_gpu_s=100.5),
        trainer_options={"argv": ["train", "--lr", "1e-4"], "nested": {"a": None}},
        baseline=ParallelConfig(dp=8),
        enqueue=(ParallelConfig(tp=2, dp=4), ParallelConfig(pp=2, dp=4)),
    )


def an_estimate() -> Estimate:
    """A prediction with a number in every field."""
    parts = dict.fromkeys(TimeParts.__dataclass_fields__, 0.1)
    memory = dict.fromkeys(MemoryParts.__dataclass_fields__, 1e9)
    return Estimate(
        step_time_s=0.9,
        step_time_low_s=0.8,
        step_time_high_s=1.0,
        time_parts_s=TimeParts(**parts),
        tokens_per_s=1e5,
        tokens_per_s_per_gpu=1.25e4,
        mfu=0.4,
        peak_memory_bytes=6e9,
        peak_memory_low_bytes=5e9,
        peak_memory_high_bytes=7e9,
        memory_parts_bytes=MemoryParts(**memory),
        oom_probability=0.01,
    )


def pending(number: int, config: ParallelConfig | None = None, **fields: Any) -> Trial:
    """A trial that has not run; by default each number has a config of its own."""
    config = config or ParallelConfig(dp=8, micro_batch_size=number + 1)
    return Trial(config=config, number=number, seed=number, estimate=an_estimate(), reason="because", **fields)


def measured(trial: Trial, *, step_time_s: float = 0.5, status: TrialStatus = TrialStatus.COMPLETED) -> Trial:
    """The trial, measured with steps of that time: 32 * 1024 tokens per step on 8 ranks."""
    measurement = Measurement(
        step_times_s=(step_time_s, step_time_s * 1.1, step_time_s * 0.9),
        peak_memory_bytes=7.5e9,
        tokens_per_step=32 * 1024,
        num_ranks=8,
        losses=(5.5, 5.25, math.inf),
        grad_norms=(1.0, math.nan, 0.5),
        utilization={"power_watts": 400.0},
    )
    return replace(
        trial,
        status=status,
        attempts=1,
        measurement=measurement,
        reward=Reward(total=0.3, throughput=0.25, stability=0.9, parts={"loss": 1.0}),
        ended_at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    )


def failed(trial: Trial, kind: FailureKind = FailureKind.OUT_OF_MEMORY) -> Trial:
    """The trial, failed with evidence that is hard to keep."""
    failure = Failure(
        kind=kind, message="no room\0 left", exception="Error: \ud800", log_tail=("a", "b \u2028"), rank=3, step=2
    )
    return replace(trial, status=TrialStatus.FAILED, attempts=1, failure=failure)


def run_trial(store: Store, lease: Lease, trial: Trial) -> bool:
    """Asks, starts and ends a terminal `trial` as a controller would."""
    asked = replace(trial, status=TrialStatus.PENDING, attempts=0, measurement=None, reward=None, failure=None)
    store.add_trial(lease, replace(asked, ended_at=None))
    store.start_attempt(lease, trial.number, 1)
    return store.end_trial(lease, trial)


def running_study(store: Store, study: Study | None = None, *, owner: str = "controller") -> Lease:
    """A new study that is claimed and RUNNING."""
    record = store.submit(study or a_study(), {})
    lease = store.claim(record.id, owner, lease_s=LONG_S)
    assert lease is not None
    store.set_status(record.id, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    return lease


def reported(attempt: AttemptId, first_step: int, step_times_s: Sequence[float]) -> StepsReported:
    """A report of those steps; losses and norms follow from the times."""
    return StepsReported(
        id=attempt,
        first_step=first_step,
        step_times_s=tuple(step_times_s),
        losses=tuple(1.0 + t for t in step_times_s),
        grad_norms=tuple(2.0 + t for t in step_times_s),
    )


def kinds(store: Store, study_id: str) -> list[str]:
    """The kinds of a study's events in order, after a check that their numbers have no gap."""
    events = store.events(study_id, limit=100_000)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return [event.kind for event in events]


class StoreContract:
    """Laws of `autotune.ports.Store`."""

    @pytest.fixture
    def store(self) -> Any:
        """A fresh store; to be given by the heir."""
        raise NotImplementedError("give a `store` fixture")

    # -- submission and lookup

    def test_a_study_comes_back_as_it_was_submitted(self, store: Store) -> None:
        study, spec = (
            a_study("näme \u2603"),
            {"name": "x", "space": {"tp": [1, 2]}, "deep": [None, 1.5, {"a": "\U0001f600"}]},
        )
        record = store.submit(study, spec, owner="ada")
        assert record == store.study(record.id)
        assert (record.study, record.spec, record.owner) == (study, spec, "ada")
        assert record.status is StudyStatus.QUEUED
        assert record.trial_counts == {}
        assert kinds(store, record.id) == ["study.submitted"]
        assert record.id.isalnum()
        assert len(record.id) <= 16

    def test_the_same_key_is_the_same_study(self, store: Store) -> None:
        first = store.submit(a_study(), {"a": 1}, idempotency_key="k", owner="ada")
        assert store.submit(a_study(), {"a": 1}, idempotency_key="k", owner="ada") == first
        with pytest.raises(ConflictError):
            store.submit(a_study(), {"a": 2}, idempotency_key="k", owner="ada")
        with pytest.raises(ConflictError):
            store.submit(a_study("other"), {"a": 1}, idempotency_key="k", owner="ada")
        assert store.submit(a_study(), {"a": 1}, idempotency_key="k", owner="bob").id != first.id
        assert store.submit(a_study(), {"a": 1}, owner="ada").id != first.id
        assert len(store.studies()) == 3

    def test_many_submitters_with_one_key_make_one_study(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as pool:
            ids = {r.id for r in pool.map(lambda _: store.submit(a_study(), {}, idempotency_key="k"), range(16))}
        assert len(ids) == 1
        assert [r.id for r in store.studies()] == list(ids)

    def test_a_study_is_found_by_id_name_and_prefix(self, store: Store) -> None:
        record = store.submit(a_study("alpha"), {})
        twins = [store.submit(a_study("twin"), {}) for _ in range(2)]
        assert store.study("alpha").id == record.id
        assert store.study(record.id[:8]).id == record.id
        assert store.study("twin").id == twins[1].id, "the newest of a name"
        for nobody in ("nobody", "%", "_", ""):
            with pytest.raises(NotFoundError):
                store.study(nobody)

    def test_studies_are_listed_newest_first_and_filtered(self, store: Store) -> None:
        first = store.submit(a_study("a", model="small"), {}, owner="ada")
        second = store.submit(a_study("b", model="large", num_gpus=4), {}, owner="bob")
        third = store.submit(a_study("c", model="small"), {}, owner="ada")
        store.set_status(second.id, StudyStatus.CANCELLED, expect=[StudyStatus.QUEUED])

        def ids(**wanted: Any) -> list[str]:
            return [r.id for r in store.studies(**wanted)]

        assert ids() == [third.id, second.id, first.id]
        assert ids(limit=1, offset=1) == [second.id]
        assert ids(model="small") == [third.id, first.id]
        assert ids(cluster="gpu-1x4") == [second.id]
        assert ids(owner="ada", name="a") == [first.id]
        assert ids(status=StudyStatus.CANCELLED) == [second.id]
        assert ids(model="none") == []

    # -- leases

    def test_one_holder_at_a_time(self, store: Store) -> None:
        record = store.submit(a_study(), {})
        first = store.claim(record.id, "a", lease_s=LONG_S)
        assert first is not None
        assert store.claim(record.id, "b", lease_s=LONG_S) is None
        assert store.claim(record.id, "a", lease_s=LONG_S) is None
        longer = store.renew(first, lease_s=2 * LONG_S)
        assert (longer.fence, longer.owner) == (first.fence, first.owner)
        assert longer.expires_at > first.expires_at
        store.release(longer)
        second = store.claim(record.id, "b", lease_s=LONG_S)
        assert second is not None
        assert second.fence > first.fence
        store.release(first)
        assert store.claim(record.id, "c", lease_s=LONG_S) is None

    def test_a_lease_that_ran_out_is_taken_over_and_its_writes_are_refused(self, store: Store) -> None:
        record = store.submit(a_study(), {})
        frozen = store.claim(record.id, "frozen", lease_s=0)
        assert frozen is not None
        store.add_trial(frozen, pending(0))
        store.start_attempt(frozen, 0, 1)
        frozen = store.renew(frozen, lease_s=0)
        lease = store.claim(record.id, "new", lease_s=LONG_S)
        assert lease is not None
        before = store.trials(record.id)
        writes = (
            lambda: store.add_trial(frozen, pending(1)),
            lambda: store.start_attempt(frozen, 0, 2),
            lambda: store.add_steps(frozen, [reported((record.id, 0, 1), 0, [1.0])]),
            lambda: store.end_attempt(frozen, 0, 1, None),
            lambda: store.end_trial(frozen, measured(pending(0))),
            lambda: store.renew(frozen, lease_s=LONG_S),
            lambda: store.set_status(record.id, StudyStatus.FAILED, expect=[StudyStatus.QUEUED], lease=frozen),
        )
        for write in writes:
            with pytest.raises(ConflictError, match="no longer held"):
                write()
        assert store.trials(record.id) == before
        assert store.study(record.id).status is StudyStatus.QUEUED
        assert kinds(store, record.id)[-1] == "trial.late", "the measurement of the fenced one is kept as late"
        assert store.end_trial(lease, measured(pending(0)))

    def test_many_claimants_and_one_wins(self, store: Store) -> None:
        record = store.submit(a_study(), {})
        with ThreadPoolExecutor(16) as pool:
            leases = list(pool.map(lambda i: store.claim(record.id, f"c{i}", lease_s=LONG_S), range(100)))
        assert len([lease for lease in leases if lease]) == 1

    def test_what_waits_can_be_claimed(self, store: Store) -> None:
        first, second = (store.submit(a_study(name), {}) for name in ("a", "b"))
        assert [r.id for r in store.claimable()] == [first.id, second.id]
        lease = store.claim(first.id, "c", lease_s=LONG_S)
        assert lease is not None
        assert [r.id for r in store.claimable()] == [second.id]
        store.renew(lease, lease_s=0)
        assert [r.id for r in store.claimable()] == [first.id, second.id]
        store.set_status(second.id, StudyStatus.PAUSED, expect=[StudyStatus.QUEUED])
        store.set_status(first.id, StudyStatus.CANCELLED, expect=[StudyStatus.QUEUED])
        assert store.claimable() == []
        with pytest.raises(ConflictError):
            store.claim(first.id, "c", lease_s=LONG_S)
        with pytest.raises(NotFoundError):
            store.claim("nobody", "c", lease_s=LONG_S)

    # -- trials

    def test_a_trial_comes_back_as_it_ended(self, store: Store) -> None:
        lease = running_study(store)
        asked = pending(0, purpose=TrialPurpose.BASELINE)
        store.add_trial(lease, asked)
        (kept,) = store.trials(lease.study)
        assert kept.created_at is not None
        assert kept == replace(asked, study=lease.study, created_at=kept.created_at)
        store.start_attempt(lease, 0, 1)
        (kept,) = store.trials(lease.study)
        assert (kept.status, kept.attempts) == (TrialStatus.RUNNING, 1)
        assert kept.started_at is not None
        end = measured(asked)
        assert store.end_trial(lease, end)
        (ended,) = store.trials(lease.study)
        expected = replace(end, study=lease.study, created_at=kept.created_at, started_at=kept.started_at)
        assert repr(ended) == repr(expected)  # nan is not equal to itself, its text is
        assert store.study(lease.study).trial_counts == {"COMPLETED": 1}
        assert kinds(store, lease.study)[-3:] == ["trial.asked", "trial.started", "trial.ended"]

    def test_a_failure_keeps_its_evidence(self, store: Store) -> None:
        lease = running_study(store)
        end = failed(pending(0))
        assert run_trial(store, lease, end)
        (kept,) = store.trials(lease.study)
        assert kept.failure == end.failure
        assert store.study(lease.study).trial_counts == {"FAILED": 1}

    def test_a_terminal_trial_never_changes(self, store: Store) -> None:
        lease = running_study(store)
        ends: list[Trial] = [
            measured(pending(0)),
            failed(pending(1)),
            replace(pending(2), status=TrialStatus.CANCELLED),
        ]
        for end in ends:
            assert run_trial(store, lease, end)
        before = repr(store.trials(lease.study))
        for end in ends:
            for second in (measured(end, step_time_s=0.01), failed(end)):
                assert not store.end_trial(lease, second)
            with pytest.raises(ConflictError):
                store.start_attempt(lease, end.number, 2)
        assert repr(store.trials(lease.study)) == before
        assert kinds(store, lease.study).count("trial.late") == 6

    def test_numbers_have_no_gaps_and_asking_twice_is_asking_once(self, store: Store) -> None:
        lease = running_study(store)
        with pytest.raises(ConflictError, match="without gaps"):
            store.add_trial(lease, pending(1))
        store.add_trial(lease, pending(0))
        store.add_trial(lease, pending(0))
        with pytest.raises(ConflictError):
            store.add_trial(lease, pending(0, ParallelConfig(tp=2)))
        store.start_attempt(lease, 0, 1)
        store.start_attempt(lease, 0, 1)
        assert kinds(store, lease.study)[-2:] == ["trial.asked", "trial.started"]
        with pytest.raises(NotFoundError):
            store.start_attempt(lease, 1, 1)

    def test_a_running_attempt_is_adopted_by_the_next_holder_once(self, store: Store) -> None:
        first = running_study(store)
        store.add_trial(first, pending(0))
        with pytest.raises(NotFoundError):
            store.adopt_attempt(first, 0, 1)
        store.start_attempt(first, 0, 1)
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
        store.add_steps(second, [reported((first.study, 0, 1), 0, [0.1, 0.2])])
        store.end_trial(second, measured(pending(0)))
        with pytest.raises(ConflictError, match="does not run"):
            store.adopt_attempt(second, 0, 1)

    def test_a_lost_attempt_is_followed_by_the_next(self, store: Store) -> None:
        lease = running_study(store)
        store.add_trial(lease, pending(0))
        with pytest.raises(ConflictError, match="next attempt"):
            store.start_attempt(lease, 0, 2)
        store.start_attempt(lease, 0, 1)
        with pytest.raises(ConflictError, match="still runs"):
            store.start_attempt(lease, 0, 2)
        lost = Failure(kind=FailureKind.WORKER_LOST, message="gone")
        store.end_attempt(lease, 0, 1, lost)
        store.end_attempt(lease, 0, 1, lost)
        store.start_attempt(lease, 0, 2)
        assert store.end_trial(lease, measured(pending(0)))
        (kept,) = store.trials(lease.study)
        assert (kept.status, kept.attempts) == (TrialStatus.COMPLETED, 2)
        assert kinds(store, lease.study)[-4:] == ["trial.started", "attempt.ended", "trial.started", "trial.ended"]

    def test_only_ends_that_make_sense_are_kept(self, store: Store) -> None:
        lease = running_study(store)
        store.add_trial(lease, pending(0))
        with pytest.raises(ConflictError, match="never started"):
            store.end_trial(lease, measured(pending(0)))
        store.start_attempt(lease, 0, 1)
        bad: Sequence[Trial] = (
            replace(pending(0), status=TrialStatus.RUNNING),
            replace(pending(0), status=TrialStatus.COMPLETED),
            replace(pending(0), status=TrialStatus.FAILED),
            measured(pending(0, ParallelConfig(tp=4))),
        )
        for trial in bad:
            with pytest.raises(ConflictError):
                store.end_trial(lease, trial)
        with pytest.raises(NotFoundError):
            store.end_trial(lease, measured(pending(5)))
        store.add_trial(lease, pending(1))
        assert store.end_trial(lease, replace(pending(1), status=TrialStatus.INFEASIBLE))

    # -- steps

    def test_steps_are_kept_once_and_in_order(self, store: Store) -> None:
        lease = running_study(store)
        store.add_trial(lease, pending(0))
        assert store.steps(lease.study, 0) == {"step": [], "step_time_s": [], "loss": [], "grad_norm": []}
        store.start_attempt(lease, 0, 1)
        name = (lease.study, 0, 1)
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
        store.end_attempt(lease, 0, 1, None)
        store.start_attempt(lease, 0, 2)
        assert store.steps(lease.study, 0)["step"] == []
        assert store.steps(lease.study, 0, attempt=1) == expected
        with pytest.raises(NotFoundError):
            store.steps(lease.study, 0, attempt=3)
        with pytest.raises(NotFoundError):
            store.add_steps(lease, [reported((lease.study, 1, 1), 0, [1.0])])
        with pytest.raises(ConflictError):
            store.add_steps(lease, [reported(("other", 0, 1), 0, [1.0])])

    # -- a study's own state

    def test_status_moves_by_compare_and_set(self, store: Store) -> None:
        lease = running_study(store)
        store.set_status(
            lease.study,
            StudyStatus.RUNNING,
            expect=[StudyStatus.RUNNING],
            lease=lease,
            elapsed_s=12.5,
            baseline=0,
            best=3,
            speedup=1.25,
            result={"finals": [1, math.nan]},
        )
        record = store.study(lease.study)
        assert (record.elapsed_s, record.baseline, record.best, record.speedup) == (12.5, 0, 3, 1.25)
        assert record.result == {"finals": [1, None]}
        assert record.started_at is not None
        with pytest.raises(ConflictError):
            store.set_status(lease.study, StudyStatus.COMPLETED, expect=[StudyStatus.PAUSED])
        with pytest.raises(TypeError):
            store.set_status(lease.study, StudyStatus.RUNNING, expect=[StudyStatus.RUNNING], nonsense=1)  # type: ignore[call-arg]
        paused = store.set_status(lease.study, StudyStatus.PAUSED, expect=[StudyStatus.RUNNING], message="by ada")
        assert (paused.status, paused.message, paused.result) == (StudyStatus.PAUSED, "by ada", record.result)
        with pytest.raises(NotFoundError):
            store.set_status("nobody", StudyStatus.PAUSED, expect=[StudyStatus.RUNNING])
        assert kinds(store, lease.study) == ["study.submitted", "study.claimed", "study.running", "study.paused"]

    def test_a_terminal_study_never_changes_and_leaves_no_trial_open(self, store: Store) -> None:
        lease = running_study(store)
        run_trial(store, lease, measured(pending(0)))
        store.add_trial(lease, pending(1))
        store.add_trial(lease, pending(2))
        store.start_attempt(lease, 1, 1)
        record = store.set_status(lease.study, StudyStatus.CANCELLED, expect=[StudyStatus.RUNNING], message="by ada")
        assert record.ended_at is not None
        assert record.trial_counts == {"COMPLETED": 1, "CANCELLED": 2}
        assert not store.end_trial(lease, measured(pending(1)))
        for status in StudyStatus:
            with pytest.raises(ConflictError):
                store.set_status(lease.study, status, expect=list(StudyStatus))
        with pytest.raises(ConflictError):
            store.add_trial(lease, pending(3))
        history = kinds(store, lease.study)
        assert history[-4:] == ["trial.ended", "trial.ended", "study.cancelled", "trial.late"]

    def test_only_one_of_many_transitions_wins(self, store: Store) -> None:
        record = store.submit(a_study(), {})
        won = []
        gate = threading.Barrier(8)

        def move(status: StudyStatus) -> None:
            gate.wait(60)
            with contextlib.suppress(ConflictError):
                won.append(store.set_status(record.id, status, expect=[StudyStatus.QUEUED]).status)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(move, [StudyStatus.CANCELLED, StudyStatus.FAILED] * 4))
        assert len(won) == 1
        assert store.study(record.id).status is won[0]

    # -- history

    def test_events_are_read_on_from_where_one_stopped(self, store: Store) -> None:
        lease = running_study(store)
        for _ in range(5):
            store.record_event(lease.study, "study.note", {"x": math.inf, "y": [1, "z"]})
        events = store.events(lease.study, after=3)
        assert [e.sequence for e in events] == [4, 5, 6, 7, 8]
        assert events[0].data == {"x": None, "y": [1, "z"]}
        assert [e.sequence for e in store.events(lease.study, after=4, limit=2)] == [5, 6]
        assert store.events(lease.study, after=8) == []

    def test_the_newest_events_can_be_read_without_the_older_ones(self, store: Store) -> None:
        lease = running_study(store)
        for _ in range(5):
            store.record_event(lease.study, "study.note", {})
        assert [e.sequence for e in store.events(lease.study, limit=3, newest=True)] == [6, 7, 8]
        assert [e.sequence for e in store.events(lease.study, after=7, limit=3, newest=True)] == [8]
        assert [e.sequence for e in store.events(lease.study, newest=True)] == list(range(1, 9))

    def test_the_events_of_an_unknown_study_are_an_error(self, store: Store) -> None:
        with pytest.raises(NotFoundError):
            store.events("nobody")

    def test_many_writers_leave_no_gap(self, store: Store) -> None:
        lease = running_study(store)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: store.record_event(lease.study, "study.note", {"i": i}), range(64)))
        assert kinds(store, lease.study).count("study.note") == 64

    # -- best across history

    def test_best_ranks_measured_trials_by_throughput_per_gpu_of_the_cluster(self, store: Store) -> None:
        lease = running_study(store)
        small = running_study(store, a_study("small", num_gpus=4))
        other = running_study(store, a_study("other", model="other", trainer="megatron"))
        for number, step_time_s in enumerate((0.5, 0.3, 0.4)):
            run_trial(store, lease, measured(pending(number), step_time_s=step_time_s))
        run_trial(store, lease, failed(pending(3)))
        run_trial(store, lease, replace(pending(4), status=TrialStatus.CANCELLED))
        run_trial(store, small, measured(pending(0), step_time_s=0.55, status=TrialStatus.STOPPED))
        run_trial(store, other, measured(pending(0), step_time_s=0.2))

        def ranks(**wanted: Any) -> list[tuple[str, int]]:
            return [(record.id, trial.number) for record, trial in store.best(**wanted)]

        assert ranks() == [(other.study, 0), (small.study, 0), (lease.study, 1), (lease.study, 2), (lease.study, 0)]
        assert ranks(limit=2) == ranks()[:2]
        assert ranks(model="tiny", cluster="gpu-1x8") == [(lease.study, 1), (lease.study, 2), (lease.study, 0)]
        assert ranks(trainer="megatron") == ranks(model="other") == [(other.study, 0)]
        assert ranks(num_gpus=4, seq_len=1024, gpu="gpu") == [(small.study, 0)]
        assert ranks(cluster="none") == []
        with pytest.raises(TypeError):
            store.best(nonsense=1)  # type: ignore[call-arg]

    def test_a_config_that_was_measured_often_stands_with_its_median(self, store: Store) -> None:
        lease = running_study(store)
        config = ParallelConfig(dp=8)
        for number, step_time_s in enumerate((0.5, 0.1, 0.4, 0.45)):
            run_trial(store, lease, measured(pending(number, config), step_time_s=step_time_s))
        again = running_study(store, a_study("again"))
        run_trial(store, again, measured(pending(0, config), step_time_s=0.42))
        assert [(r.id, t.number) for r, t in store.best()] == [(again.study, 0)]
