"""The events of one trial among those of a long study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.ports import HistoryEvent
from autotune.service.pages.trial_page import MAX_EVENTS, PAGE, events_of_trial
from autotune.store import SqlStore, open_store
from autotune.store.writes import history, locking
from autotune.testing.stores import measured, pending, run_trial, running_study

NOTES = 700
"""events in the middle of the study's history, and at its end, that are of no trial"""


class CountingStore:
    """Counts the events that are read."""

    def __init__(self, store: SqlStore) -> None:
        self.store, self.read = store, 0
        self.revision = store.revision

    def events(self, study_id: str, **asked: int) -> list[HistoryEvent]:
        found = self.store.events(study_id, **asked)  # type: ignore[arg-type]
        self.read += len(found)
        return found


@pytest.fixture(scope="module")
def long_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[SqlStore, str]:
    """40 trials with three events each, and many notes in their middle and at the end."""
    store = open_store(tmp_path_factory.mktemp("long") / "results.db")
    assert isinstance(store, SqlStore)
    lease = running_study(store)
    for number in range(40):
        run_trial(store, lease, replace(measured(pending(number)), reason=f"reason {number}"))
        if number == 20:
            _add_notes(store, lease.study, NOTES)
    _add_notes(store, lease.study, NOTES)
    return store, lease.study


def _add_notes(store: SqlStore, study: str, count: int) -> None:
    with store.database.write() as connection:
        lines = [("study.note", {"message": f"note {i}"}) for i in range(count)]
        history.append(connection, locking.find(connection, study).key, lines)


def test_each_trial_has_its_own_events(long_study: tuple[SqlStore, str]) -> None:
    store, study = long_study
    for number in (0, 1, 19, 20, 21, 38, 39):
        found = events_of_trial(store, study, number)
        assert [event.kind for event in found] == ["trial.asked", "trial.started", "trial.ended"]
        assert found[0].data["reason"] == f"reason {number}"
    assert events_of_trial(store, study, 40) == []


def test_a_part_of_a_long_history_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "results.db")
    assert isinstance(store, SqlStore)
    lease = running_study(store)
    run_trial(store, lease, measured(pending(0)))
    line = {"config": "", "purpose": "search", "reason": ""}
    with store.database.write() as connection:
        asked = [("trial.asked", {"number": n, **line}) for n in range(1, 5001)]
        history.append(connection, locking.find(connection, lease.study).key, asked)
    counted = CountingStore(store)
    (event,) = events_of_trial(counted, lease.study, 4_700)  # type: ignore[arg-type]
    assert event.data["number"] == 4_700
    assert counted.read <= MAX_EVENTS + 6 * PAGE
