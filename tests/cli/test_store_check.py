"""`autotune store check`: what it shows, and what it says to programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from autotune.cli import store_check
from autotune.store import open_store
from autotune.testing.stores import a_study
from tests.cli.conftest import Done
from tests.study.replay.forger import Forger
from tests.study.replay.test_forgeries import stop_reason_changed


def test_check_shows_and_tells_what_it_replayed(run: Callable[..., Done], write: Callable[..., Path]) -> None:
    assert run("tune", write(), "--store", "results.db").code == 0
    done = run("store", "check", "--store", "results.db", "--json")
    told = done.document
    assert (done.code, told["ok"], told["replay"]) == (0, True, True)
    assert told["decisions"] == told["followed"] > 5
    (study,) = told["studies"]
    counts = {"decisions": told["decisions"], "followed": told["followed"]}
    assert study["replayed"] == {**counts, "unfollowed": None, "not_checked": []}
    told = run("store", "check", "--store", "results.db", "--no-replay", "--json").document
    assert told["studies"][0]["replayed"] is None
    assert any("without --no-replay" in reason for reason in told["not_checked"])
    with closing(open_store("results.db")) as store:
        forger = Forger(store)
        stop_reason_changed(forger)
        forger.save()
    shown = run("store", "check", "--store", "results.db")
    assert shown.code == 1
    assert "does not follow: recorded is COMPLETED: enough" in shown.err
    assert "decisions" in shown.out
    assert run("store", "check", "--store", "results.db", "--no-replay").code == 0


@pytest.mark.thorough
def test_an_option_says_whose_decisions_are_replayed(
    run: Callable[..., Done], write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("tune", write(), "--store", "results.db").code == 0
    with closing(open_store("results.db")) as store:
        newer = store.submit(a_study("newer"), {}).id
        older = store.studies()[1].id
    monkeypatch.setattr(store_check, "NEWEST", 1)

    def replayed(*options: str) -> tuple[set[str], str]:
        told = run("store", "check", "--store", "results.db", "--json", *options).document
        return {s["id"] for s in told["studies"] if s["replayed"]}, "; ".join(told["not_checked"])

    for options, expected, said in (
        ((), {newer}, "older than the newest 1"),
        (("--all",), {older, newer}, ""),
        (("--study", older[:8]), {older}, "that --study does not name"),
        (("--since", "1h"), {older, newer}, ""),
        (("--since", "0s"), set(), "in which nothing was written for 0s"),
    ):
        ids, words = replayed(*options)
        assert ids == expected, options
        assert said in words, options
    assert run("store", "check", "--store", "results.db", "--all", "--since", "1h").code == 2
    assert run("store", "check", "--store", "results.db", "--since", "yesterday").code == 2
    assert run("store", "check", "--store", "results.db", "--study", "nobody").code == 2
