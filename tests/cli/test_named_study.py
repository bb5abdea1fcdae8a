"""A name that several studies have: the newest is shown with a list of the others, and none of
several open ones is acted on."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from autotune import api
from autotune.cli.named_study import MAX_LISTED
from autotune.schema import read_spec
from autotune.store import open_store


def test_the_newest_of_a_name_is_shown_and_the_others_are_listed(run, write) -> None:
    spec = write(budget={"max_trials": 1})
    older, newer = (run("tune", spec, "--new", "--json").document["study"] for _ in range(2))
    done = run("status", "small")
    assert re.search(rf"study +{newer['id']} \(small\): completed", done.out)
    assert f"2 studies are named 'small'; this is the newest, {newer['id']}." in done.err
    line = next(line for line in done.err.splitlines() if older["id"] in line)
    assert older["created_at"][:10] in line
    assert "completed" in line
    assert "called" not in run("status", newer["id"]).err
    assert run("status", "small", "--json").document["study"]["id"] == newer["id"]


def test_a_name_of_several_open_studies_is_rejected(run, refusal, write) -> None:
    spec = write()
    first, second = (run("submit", spec, "--json").document["study"]["id"] for _ in range(2))
    output = refusal("cancel", "small")
    for text in (
        first,
        second,
        "2 studies that have not ended are named 'small'",
        "use the study's id, e.g.",
    ):
        assert text in output
    assert run("cancel", second).code == 0
    assert run("cancel", "small").code == 0, "one alone is open"
    with closing(open_store()) as store:
        assert {str(store.study(study).status) for study in (first, second)} == {"CANCELLED"}


def test_the_only_open_study_of_a_name_is_controlled(run, write) -> None:
    document = read_spec(write())
    study = api.load_study(document)
    with closing(open_store()) as store:
        oldest, *others = (
            api.submit_study(store, study, document).id for _ in range(MAX_LISTED + 2)
        )
        for other in others:
            api.act(store, other, "cancel")
        assert run("pause", "small").code == 0
        assert str(store.study(oldest).status) == "PAUSED"


@pytest.mark.thorough
def test_a_name_of_several_studies_is_not_deleted(run, refusal, write) -> None:
    spec = write()
    first, second = (run("submit", spec, "--json").document["study"]["id"] for _ in range(2))
    for study in (first, second):
        assert run("cancel", study).code == 0
    output = refusal("delete", "small", "--yes")
    assert "2 studies are named 'small'" in output
    assert f"e.g. {second}" in output
    assert f"this is the newest, {second}" in run("tag", "small", "kept").err
    assert run("delete", second, "--yes").code == 0
    assert run("delete", "small", "--yes").code == 0, "one alone is left"


@pytest.mark.thorough
def test_an_ambiguous_id_prefix_lists_the_studies(run, write) -> None:
    spec = write(budget={"max_trials": 1})
    with closing(open_store()) as store:
        document = api.read_document(spec)
        ids = {api.submit_study(store, api.load_study(spec), document).id[0] for _ in range(40)}
    assert len(ids) < 40
    output = [done.err for letter in ids if "more than one" in (done := run("status", letter)).err]
    assert output
    assert "(small, 20" in output[0]
    assert "queued)" in output[0]


def test_an_empty_name_selects_no_study(run, refusal, write) -> None:
    study = run("submit", write(), "--json").document["study"]["id"]
    for command in ("status", "cancel", "stop"):
        assert refusal(command, "").startswith("error: ID: this command needs a study")
    assert run("delete", "", "--yes").code == 2
    assert run("status", study, "--json").document["study"]["status"] == "QUEUED"
