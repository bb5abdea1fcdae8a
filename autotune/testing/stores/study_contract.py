"""Contract of `StudyReader` and `StudyWriter`: submission, lookup, status, history."""

from __future__ import annotations

import contextlib
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autotune.errors import ConflictError, NotFoundError
from autotune.ports import EndTrial, KeepTrial, LeasedStore
from autotune.spec import StudyStatus, Wanted
from autotune.testing.stores.sample_studies import (
    a_study,
    decide,
    kinds,
    kinds_without_decisions,
    launch,
    measured,
    pending,
    run_trial,
    running_study,
)
from autotune.testing.stores.store_fixture import StoreFixture


class StudyContract(StoreFixture):
    """Studies are stored once, found, changed by compare-and-set, and every change is in the
    history."""

    # -- submission and lookup

    def test_a_study_comes_back_as_it_was_submitted(self, store: LeasedStore) -> None:
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

    def test_the_same_key_is_the_same_study(self, store: LeasedStore) -> None:
        first = store.submit(a_study(), {"a": 1}, idempotency_key="k", owner="ada")
        assert store.submit(a_study(), {"a": 1}, idempotency_key="k", owner="ada") == first
        with pytest.raises(ConflictError):
            store.submit(a_study(), {"a": 2}, idempotency_key="k", owner="ada")
        with pytest.raises(ConflictError):
            store.submit(a_study("other"), {"a": 1}, idempotency_key="k", owner="ada")
        assert store.submit(a_study(), {"a": 1}, idempotency_key="k", owner="bob").id != first.id
        assert store.submit(a_study(), {"a": 1}, owner="ada").id != first.id
        assert len(store.studies()) == 3

    def test_many_submitters_with_one_key_make_one_study(self, store: LeasedStore) -> None:
        with ThreadPoolExecutor(8) as pool:
            ids = {
                r.id
                for r in pool.map(
                    lambda _: store.submit(a_study(), {}, idempotency_key="k"), range(16)
                )
            }
        assert len(ids) == 1
        assert [r.id for r in store.studies()] == list(ids)

    def test_who_joins_gets_the_study_of_the_same_spec_that_has_not_ended(
        self, store: LeasedStore
    ) -> None:
        with ThreadPoolExecutor(8) as pool:
            ids = {
                r.id
                for r in pool.map(lambda _: store.submit(a_study(), {"a": 1}, join=True), range(8))
            }
        assert len(ids) == 1
        (first,) = ids
        assert store.submit(a_study(num_gpus=4), {"a": 2}, join=True).id != first
        assert store.submit(a_study("other"), {"a": 1}, join=True).id != first, "of the same name"
        assert store.submit(a_study(), {"a": 1}).id != first
        for record in store.studies():
            if record.study == a_study():
                store.want(record.id, Wanted.CANCEL)
        assert store.submit(a_study(), {"a": 1}, join=True).id not in ids

    def test_a_study_is_found_by_id_name_and_prefix(self, store: LeasedStore) -> None:
        record = store.submit(a_study("alpha"), {})
        twins = [store.submit(a_study("twin"), {}) for _ in range(2)]
        assert store.study("alpha").id == record.id
        assert store.study(record.id[:8]).id == record.id
        assert store.study("twin").id == twins[1].id, "the newest of a name"
        for nobody in ("nobody", "%", "_", ""):
            with pytest.raises(NotFoundError):
                store.study(nobody)

    def test_studies_are_listed_newest_first_and_filtered(self, store: LeasedStore) -> None:
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

    # -- a study's own state

    def test_status_moves_by_compare_and_set(self, store: LeasedStore) -> None:
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
        assert (record.elapsed_s, record.baseline, record.best, record.speedup) == (
            12.5,
            0,
            3,
            1.25,
        )
        assert record.result == {"finals": [1, None]}
        assert record.started_at is not None
        with pytest.raises(ConflictError):
            store.set_status(
                lease.study, StudyStatus.COMPLETED, expect=[StudyStatus.PAUSED], lease=lease
            )
        with pytest.raises(TypeError):
            store.set_status(
                lease.study,
                StudyStatus.RUNNING,
                expect=[StudyStatus.RUNNING],
                lease=lease,
                nonsense=1,
            )  # type: ignore[call-arg]
        paused = store.set_status(
            lease.study,
            StudyStatus.PAUSED,
            expect=[StudyStatus.RUNNING],
            message="by ada",
            lease=lease,
        )
        assert (paused.status, paused.message, paused.result) == (
            StudyStatus.PAUSED,
            "by ada",
            record.result,
        )
        same = store.set_status(
            lease.study,
            StudyStatus.PAUSED,
            expect=[StudyStatus.PAUSED],
            message=None,
            lease=lease,
            elapsed_s=13.0,
        )
        assert (same.message, same.elapsed_s) == ("by ada", 13.0)
        with pytest.raises(NotFoundError):
            store.set_status("nobody", StudyStatus.PAUSED, expect=[StudyStatus.RUNNING])
        assert kinds(store, lease.study) == [
            "study.submitted",
            "study.claimed",
            "study.running",
            "study.paused",
        ]

    def test_a_terminal_study_never_changes_and_leaves_no_trial_open(
        self, store: LeasedStore
    ) -> None:
        lease = running_study(store)
        run_trial(store, lease, measured(pending(0)))
        decide(store, lease, KeepTrial(trial=pending(1)))
        decide(store, lease, KeepTrial(trial=pending(2)))
        decide(store, lease, launch(lease, 1, 1))
        record = store.set_status(
            lease.study,
            StudyStatus.CANCELLED,
            expect=[StudyStatus.RUNNING],
            message="by ada",
            lease=lease,
        )
        assert record.ended_at is not None
        assert record.trial_counts == {"COMPLETED": 1, "CANCELLED": 2}
        decide(store, lease, EndTrial(trial=measured(pending(1))))
        for status in StudyStatus:
            with pytest.raises(ConflictError):
                store.set_status(lease.study, status, expect=list(StudyStatus), lease=lease)
        for wanted in Wanted:
            with pytest.raises(ConflictError):
                store.want(lease.study, wanted)
        with pytest.raises(ConflictError):
            decide(store, lease, KeepTrial(trial=pending(3)))
        history = kinds_without_decisions(store, lease.study)
        assert history[-4:] == ["trial.ended", "trial.ended", "study.cancelled", "trial.late"]

    def test_people_and_the_controller_write_into_different_places(
        self, store: LeasedStore
    ) -> None:
        lease = running_study(store)
        assert store.study(lease.study).wanted is Wanted.RUN
        paused = store.want(lease.study, Wanted.PAUSE, message="by ada")
        assert (paused.status, paused.wanted, paused.message) == (
            StudyStatus.RUNNING,
            Wanted.PAUSE,
            "by ada",
        )
        assert paused.wanted_at is not None
        assert store.want(lease.study, Wanted.PAUSE, message="by bob").message == "by ada", (
            "nothing new was requested"
        )
        moved = store.set_status(
            lease.study,
            StudyStatus.RUNNING,
            expect=[StudyStatus.RUNNING],
            message=None,
            lease=lease,
        )
        assert (moved.wanted, moved.message) == (Wanted.PAUSE, "by ada")
        with pytest.raises(ConflictError):
            # somebody runs it
            store.set_status(lease.study, StudyStatus.PAUSED, expect=[StudyStatus.RUNNING])
        with pytest.raises(ConflictError):
            store.set_status(
                lease.study,
                StudyStatus.RUNNING,
                expect=[StudyStatus.RUNNING],
                lease=lease,
                wanted=Wanted.RUN,
            )
        for wanted in (Wanted.RUN, Wanted.STOP):
            assert store.want(lease.study, wanted).wanted is wanted
        for wanted in (Wanted.RUN, Wanted.PAUSE):
            with pytest.raises(ConflictError):
                store.want(lease.study, wanted)  # a stop is not taken back
        assert store.want(lease.study, Wanted.CANCEL).wanted is Wanted.CANCEL
        assert kinds(store, lease.study)[-4:] == ["study.wanted"] * 4
        with pytest.raises(NotFoundError):
            store.want("nobody", Wanted.RUN)

    def test_only_one_of_many_transitions_wins(self, store: LeasedStore) -> None:
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

    def test_events_are_read_on_from_where_one_stopped(self, store: LeasedStore) -> None:
        lease = running_study(store)
        for _ in range(5):
            store.record_event(lease.study, "study.note", {"x": math.inf, "y": [1, "z"]})
        events = store.events(lease.study, after=3)
        assert [e.sequence for e in events] == [4, 5, 6, 7, 8]
        assert events[0].data == {"x": None, "y": [1, "z"]}
        assert [e.sequence for e in store.events(lease.study, after=4, limit=2)] == [5, 6]
        assert store.events(lease.study, after=8) == []

    def test_the_newest_events_can_be_read_without_the_older_ones(self, store: LeasedStore) -> None:
        lease = running_study(store)
        for _ in range(5):
            store.record_event(lease.study, "study.note", {})
        assert [e.sequence for e in store.events(lease.study, limit=3, newest=True)] == [6, 7, 8]
        assert [e.sequence for e in store.events(lease.study, after=7, limit=3, newest=True)] == [8]
        assert [e.sequence for e in store.events(lease.study, newest=True)] == list(range(1, 9))

    def test_the_events_of_an_unknown_study_are_an_error(self, store: LeasedStore) -> None:
        with pytest.raises(NotFoundError):
            store.events("nobody")

    def test_many_writers_leave_no_gap(self, store: LeasedStore) -> None:
        lease = running_study(store)
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda i: store.record_event(lease.study, "study.note", {"i": i}), range(64)
                )
            )
        assert kinds(store, lease.study).count("study.note") == 64

    def test_the_revision_moves_with_every_change_and_with_nothing_else(
        self, store: LeasedStore
    ) -> None:
        lease = running_study(store)
        other = running_study(store, a_study("other"))
        before = store.revision(lease.study)
        assert (before.id, before.events) == (lease.study, len(kinds(store, lease.study)))
        store.record_event(other.study, "study.note", {})
        assert store.revision("study") == before, "found by name, and unchanged"
        decide(store, lease, KeepTrial(trial=pending(0)))
        assert store.revision(lease.study) != before
        with pytest.raises(NotFoundError):
            store.revision("nobody")
