"""Contract of `AnnotationStore`, and of deleting a study."""

from __future__ import annotations

import pytest

from autotune.errors import ConflictError, NotFoundError, SpecError
from autotune.ports import ServiceStore
from autotune.spec import StudyStatus
from autotune.spec.runs.observed import MAX_NOTE, MAX_TAGS
from autotune.testing.stores.sample_studies import (
    a_study,
    kinds,
    measured,
    pending,
    run_trial,
    running_study,
)
from autotune.testing.stores.store_fixture import StoreFixture


class AnnotationContract(StoreFixture):
    """Notes and tags are stored, found and removed; a deleted study leaves nothing behind."""

    def test_notes_are_kept_in_order_and_removed_by_number(self, store: ServiceStore) -> None:
        study = store.submit(a_study(), {}).id
        first = store.annotations.add_note(study, "  too slow\r\non Friday\n", author="ada")
        second = store.annotations.add_note(study, "näme \u2603", author="bob")
        assert store.annotations.add_note(study, "näme \u2603", author="bob") == second, (
            "repeating a request adds nothing"
        )
        assert store.annotations.notes(study) == [first, second]
        assert (first.text, first.author) == ("too slow\non Friday", "ada")
        before = store.revision(study)
        store.annotations.remove_note(study, second.number)
        assert store.revision(study) != before
        assert store.annotations.notes(study) == [first]
        assert store.annotations.add_note(study, "again").number > second.number, (
            "numbers are never reused"
        )
        assert kinds(store, study)[1:] == [
            "study.noted",
            "study.noted",
            "study.note_removed",
            "study.noted",
        ]
        with pytest.raises(NotFoundError):
            store.annotations.remove_note(study, second.number)
        for wrong in ("", " \n", "x" * (MAX_NOTE + 1)):
            with pytest.raises(SpecError):
                store.annotations.add_note(study, wrong)
        with pytest.raises(NotFoundError):
            store.annotations.add_note("absent", "text")

    def test_tags_are_changed_and_find_studies(self, store: ServiceStore) -> None:
        one, two = (store.submit(a_study(name), {}).id for name in ("one", "two"))
        assert store.annotations.change_tags(one, add=["sweep", "h100/v2", "sweep"]).tags == (
            "h100/v2",
            "sweep",
        )
        store.annotations.change_tags(two, add=["sweep"])
        assert [record.id for record in store.studies(tag="sweep")] == [two, one]
        assert [record.id for record in store.studies(tag="h100/v2")] == [one]
        assert store.studies(tag="swee") == []
        before = store.revision(two)
        assert store.annotations.change_tags(two, add=["sweep"], remove=["absent"]).tags == (
            "sweep",
        )
        assert store.revision(two) == before, "nothing changed"
        assert store.annotations.change_tags(two, remove=["sweep"]).tags == ()
        assert store.study(one).tags == ("h100/v2", "sweep")
        assert kinds(store, two) == ["study.submitted", "study.tagged", "study.tagged"]
        for wrong in ("", "two words", "-x", "x" * 51, "é"):
            with pytest.raises(SpecError):
                store.annotations.change_tags(one, add=[wrong])
        with pytest.raises(SpecError):
            store.annotations.change_tags(one, add=[f"t{i}" for i in range(MAX_TAGS)])
        assert store.study(one).tags == ("h100/v2", "sweep")

    def test_a_deleted_study_leaves_nothing_behind(self, store: ServiceStore) -> None:
        slow = running_study(store, a_study("slow"))
        run_trial(store, slow, measured(pending(0), step_time_s=0.5))
        store.set_status(
            slow.study, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=slow
        )
        fast = store.submit(a_study("fast"), {"a": 1}, idempotency_key="k")
        lease = store.claim(fast.id, "controller", lease_s=60)
        assert lease is not None
        store.set_status(fast.id, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
        run_trial(store, lease, measured(pending(0), step_time_s=0.25))
        run_trial(store, lease, measured(pending(1), step_time_s=0.1))
        store.annotations.add_note(fast.id, "a note")
        store.annotations.change_tags(fast.id, add=["tag"])
        with pytest.raises(ConflictError):
            store.delete(fast.id)
        store.set_status(fast.id, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease)
        assert len(store.best()) == 2
        store.delete(fast.id, learners=[slow.study])
        assert [(record.id, trial.number) for record, trial in store.best()] == [(slow.study, 0)]
        assert kinds(store, slow.study)[-1] == "history.deleted"
        assert [record.id for record in store.studies()] == [slow.study]
        for read in (
            store.study,
            store.trials,
            store.events,
            store.annotations.notes,
            store.delete,
        ):
            with pytest.raises(NotFoundError):
                read(fast.id)
        assert store.submit(a_study("fast"), {"a": 1}, idempotency_key="k").id != fast.id
