"""`autotune store check`: what it shows, and what it says to programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from autotune.store import open_store
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
