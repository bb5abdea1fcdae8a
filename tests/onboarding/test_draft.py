"""A draft's entries: looked up, replaced, added and left out by their path."""

from __future__ import annotations

from autotune.onboarding.draft import Draft, Entry, filled, stated

TRAINER = Entry(
    key="trainer", parts=(Entry(key="kind", value="command"), Entry(key="cwd", value="."))
)
DRAFT = Draft(
    heading=(), entries=(Entry(key="space", value={"tp": [1]}), TRAINER), fill_in=("space",)
)


def test_an_entry_is_found_by_its_path() -> None:
    found = DRAFT.at("trainer.cwd")
    assert found is not None
    assert found.value == "."
    assert DRAFT.at("trainer.env") is None
    assert DRAFT.value("space") == {"tp": [1]}
    assert DRAFT.value("baseline") == {}


def test_an_entry_is_replaced_in_its_place_or_added() -> None:
    changed = DRAFT.put("trainer.kind", Entry(key="kind", value="native"))
    assert changed.document["trainer"] == {"kind": "native", "cwd": "."}
    added = changed.put("trainer.env", Entry(key="env", value={"A": "1"}), after="kind")
    assert list(added.document["trainer"]) == ["kind", "env", "cwd"]
    whole = added.put("baseline", Entry(key="baseline", value="tp=1"), after="space")
    assert list(whole.document) == ["space", "baseline", "trainer"]
    assert list(whole.put("baseline", None).document) == ["space", "trainer"]
    assert DRAFT.edited("trainer.env", value={"A": "1"}) == DRAFT, "there is none to edit"


def test_what_is_asked_is_asked_once() -> None:
    assert DRAFT.asking("space", "model").fill_in == ("space", "model")
    assert DRAFT.noting("one", "two").notes == ("one", "two")


def test_what_says_nothing_is_left_out() -> None:
    entries = (Entry(key="env", value={}), Entry(key="seed", value=1), TRAINER)
    assert [entry.key for entry in filled(*entries)] == ["seed", "trainer"]
    assert stated(loop="", pure_bf16=False, peft={}, rank=8) == {"rank": 8}
