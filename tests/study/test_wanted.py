"""What people want of a study and what it is: neither overwrites the other, whenever it is said."""

from __future__ import annotations

import pytest

from autotune import api
from autotune.errors import ConflictError
from autotune.ports import Store
from autotune.search.grid import GridSearcher
from autotune.search.searcher import Problem, Searcher
from autotune.spec import StudyStatus, Wanted
from tests.shortcuts import present
from tests.small_studies import spec
from tests.study.hearing import when_ended


def submitted(store: Store) -> str:
    return api.submit_study(store, api.load_study(spec()), spec()).id


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("pause", StudyStatus.PAUSED),
        ("cancel", StudyStatus.CANCELLED),
        ("stop", StudyStatus.COMPLETED),
    ],
)
def test_what_is_asked_for_while_the_controller_starts_is_obeyed(
    store: Store, action: str, status: StudyStatus
) -> None:
    """A controller takes seconds to start: it builds the space, the searcher and the runner."""
    asked: list[str] = []

    def slow(problem: Problem) -> Searcher:
        running = [record.id for record in store.studies() if store.is_held(record.id)]
        if running and not asked:
            asked.append(action)
            assert api.act(store, running[0], action).status is StudyStatus.QUEUED
        return GridSearcher(problem)

    result = api.tune(spec(), store=store, searcher=slow)
    assert asked
    assert result.record.wanted is api.WANTED[action][0]
    if action == "stop":
        assert result.record.status.is_terminal
        assert len(result.trials) <= 1
    else:
        assert result.record.status is status
        assert not [t for t in result.trials if t.attempts]


def test_a_study_that_is_to_pause_is_not_run(store: Store) -> None:
    study = submitted(store)
    held = present(store.claim(study, "somebody", lease_s=60.0))
    assert api.act(store, study, "pause").status is StudyStatus.QUEUED, (
        "its controller has not heard it yet"
    )
    store.release(held)
    result = api.run_study(store, study)
    assert (result.record.status, result.trials) == (StudyStatus.PAUSED, ())
    assert api.act(store, study, "resume").status is StudyStatus.QUEUED
    assert api.run_study(store, study).record.status is StudyStatus.COMPLETED


def test_a_stop_right_after_a_pause_is_not_lost(store: Store) -> None:
    """Both come between two looks of the controller at what people want."""
    said: list[Wanted] = []

    def ask(study: str) -> None:
        said.extend(api.act(store, study, action).wanted for action in ("pause", "resume", "stop"))

    result = api.tune(
        spec(budget={"max_trials": 20, "min_gain": 0}), store=store, on_event=when_ended(2, ask)
    )
    assert said == [Wanted.PAUSE, Wanted.RUN, Wanted.STOP]
    assert result.record.status is StudyStatus.COMPLETED
    assert result.record.message == "stopped on request"
    assert len(result.trials) <= 4, "the one that ran, and at most the next"
    with pytest.raises(ConflictError, match="ended"):
        api.act(store, result.record.id, "pause")


def test_a_stop_or_cancel_is_not_taken_back(store: Store) -> None:
    study = submitted(store)
    assert store.claim(study, "somebody", lease_s=60.0) is not None
    api.act(store, study, "stop")
    for action in ("pause", "resume"):
        with pytest.raises(ConflictError, match="cannot be undone"):
            api.act(store, study, action)
    assert api.act(store, study, "cancel").wanted is Wanted.CANCEL


def test_a_pause_that_is_taken_back_while_the_study_comes_to_rest_leaves_it_to_the_next_controller(
    store: Store,
) -> None:
    study = submitted(store)
    paused = api.run_study(
        store, study, on_event=when_ended(1, lambda study: api.act(store, study, "pause"))
    )
    assert (paused.record.status, paused.record.message) == (
        StudyStatus.PAUSED,
        "paused on request",
    )
    assert api.act(store, study, "resume").status is StudyStatus.RUNNING
    assert [record.id for record in store.claimable()] == [study]
    assert api.run_study(store, study).record.status is StudyStatus.COMPLETED


def test_an_error_of_the_operating_system_ends_no_study_for_good(store: Store) -> None:
    study = submitted(store)

    def full(study: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        api.run_study(store, study, on_event=when_ended(2, full))
    record = store.study(study)
    assert record.status is StudyStatus.PAUSED
    assert "No space left on device" in record.message
    result = api.run_study(store, study)
    assert result.record.status is StudyStatus.COMPLETED
    assert len(result.trials) == 11


def test_a_finished_study_wants_nothing_more(store: Store) -> None:
    result = api.tune(spec(), store=store)
    assert api.document(result)["study"]["wanted"] == "run"
    with pytest.raises(ConflictError):
        api.act(store, result.record.id, "cancel")
