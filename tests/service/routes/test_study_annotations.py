"""Notes, tags and deletion over real HTTP: who may do what, and what is refused."""

from __future__ import annotations

import json

import pytest

from autotune import cli
from autotune.errors import ConflictError, NotFoundError, ServiceError, SpecError
from autotune.ports import Lease
from autotune.spec import StudyStatus
from autotune.testing.stores import measured, pending, run_trial
from tests.service.running import API, Service, bearer, spec


def ended(service: Service, token: str, name: str) -> str:
    """The id of a study of the token's owner with one measured trial, which has ended."""
    study = service.submitted(spec(name=name), token)
    lease = started(service, study)
    run_trial(service.store, lease, measured(pending(0)))
    service.store.set_status(
        study, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease
    )
    return study


def started(service: Service, study: str) -> Lease:
    lease: Lease = service.store.claim(study, "tester:1:1", lease_s=600)
    service.store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    return lease


def test_submitters_may_write_notes_and_authors_or_owners_remove_them(
    guarded: Service,
) -> None:
    ann, bob, eve = (guarded.token("submit", name) for name in ("ann", "bob", "eve"))
    reader = guarded.token("read", "rae")
    with guarded.client(ann) as client:
        study = client.submit(spec(name="noted"))["study"]["id"]
        client.add_note(study, "first")
    with guarded.client(bob) as client:
        second = client.add_note(study, "<b>second</b>")["note"]
        assert client.add_note(study, "<b>second</b>")["note"] == second
        third = client.add_note(study, "third")["note"]["number"]
        assert [note["author"] for note in client.notes(study)] == ["ann", "bob", "bob"]
        assert len(client.remove_note(study, second["number"])["notes"]) == 2
    with (
        guarded.client(eve) as client,
        pytest.raises(ServiceError, match="only the owner or an admin"),
    ):
        client.remove_note(study, third)
    with guarded.client(reader) as client:
        assert [note["text"] for note in client.notes(study)] == ["first", "third"]
        with pytest.raises(ServiceError, match="scope submit"):
            client.add_note(study, "no")
    with guarded.client(ann) as client:
        client.remove_note(study, third)
        with pytest.raises(NotFoundError):
            client.remove_note(study, third)
        with pytest.raises(SpecError):
            client.add_note(study, "  ")


def test_only_the_owner_changes_tags_which_select_studies(guarded: Service) -> None:
    ann, bob = guarded.token("submit", "ann"), guarded.token("submit", "bob")
    with guarded.client(ann) as client:
        study = client.submit(spec(name="tagged"))["study"]["id"]
        assert client.status(study)["study"]["tags"] == []
        assert client.tag(study, add=["sweep", "h100"])["study"]["tags"] == ["h100", "sweep"]
        assert client.status(study)["study"]["tags"] == ["h100", "sweep"], (
            "no older response is sent"
        )
        assert [found["id"] for found in client.studies(tag="sweep")["studies"]] == [study]
        assert client.tag(study, remove=["h100"])["study"]["tags"] == ["sweep"]
        with pytest.raises(SpecError, match="two words"):
            client.tag(study, add=["two words"])
    with (
        guarded.client(bob) as client,
        pytest.raises(ServiceError, match="only the owner or an admin"),
    ):
        client.tag(study, add=["mine"])
    assert (
        guarded.http.patch(
            f"{API}/studies/{study}/tags", json={"ad": []}, headers=bearer(ann)
        ).status_code
        == 422
    )


def test_the_owner_deletes_a_study_after_it_and_its_learners_have_ended(
    guarded: Service,
) -> None:
    ann, bob = guarded.token("submit", "ann"), guarded.token("submit", "bob")
    first = ended(guarded, ann, "first")
    with guarded.client(ann) as client:
        second = client.submit(spec(name="second"))["study"]["id"]
        with pytest.raises(ConflictError, match="has ended"):
            client.delete(second)
    lease = started(guarded, second)
    with (
        guarded.client(bob) as client,
        pytest.raises(ServiceError, match="only the owner or an admin"),
    ):
        client.delete(first)
    with guarded.client(ann) as client:
        assert client.deletion(first)["deletion"]["held_by"] == [{"id": second, "name": "second"}]
        with pytest.raises(ConflictError, match="second"):
            client.delete(first)
        guarded.store.set_status(
            second, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease
        )
        gone = client.delete(first)["deletion"]
        assert (gone["trials"], gone["measured"], gone["learners"]) == (
            1,
            1,
            [{"id": second, "name": "second"}],
        )
        with pytest.raises(NotFoundError):
            client.status(first)
        assert client.events(second)[-1]["kind"] == "history.deleted"
        assert client.best_across(model="gpt2-medium", runner="simulated")["best"] is None
    assert [line.action for line in guarded.store.audit_events() if line.subject == first][
        -1
    ] == "study.delete"


@pytest.mark.thorough
def test_the_commands_note_tag_and_delete(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    study = ended(service, "", "by hand")
    store = ["--store", str(service.path)]

    def said(*words: str) -> str:
        assert cli.run([*words, *store]) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out + captured.err

    assert "note" in said("note", study, "it was a quiet night")
    listed = said("note", study)
    assert "it was a quiet night" in listed
    assert "this machine" in listed
    assert "night, quiet" in said("tag", study, "quiet", "night")
    assert study in said("list", "--tag", "quiet")
    assert json.loads(said("tag", study, "--remove", "night", "--json"))["study"]["tags"] == [
        "quiet"
    ]
    number = json.loads(said("note", study, "--json"))["notes"][0]["number"]
    assert "is removed" in said("note", study, "--remove", str(number))
    assert "is deleted" in said("delete", study, "--yes")
    assert cli.run(["status", study, *store]) == 2
