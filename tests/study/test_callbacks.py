"""Callbacks of `autotune.tune`: what they hear, and what becomes of a study whose callback
raises."""

from __future__ import annotations

import pytest

from autotune import api
from autotune.errors import CallbackError
from autotune.ports import Store
from autotune.spec import StudyStatus, Trial
from autotune.study.progress import LoopEvent, TrialEnded
from tests.shortcuts import present
from tests.small_studies import spec

SMALL = {"max_trials": 3, "min_gain": 0}


def test_callbacks_hear_of_every_trial_every_best_and_the_end(store: Store) -> None:
    ended: list[Trial] = []
    best: list[Trial] = []
    results: list[api.Result] = []
    events: list[LoopEvent] = []
    result = api.tune(
        spec(budget=SMALL),
        store=store,
        on_event=events.append,
        on_trial=ended.append,
        on_best=best.append,
        on_end=results.append,
    )
    assert [t.number for t in ended] == [t.number for t in result.trials]
    assert ended == [e.trial for e in events if isinstance(e, TrialEnded)]
    assert best[-1].config == present(result.best).config
    assert results == [result]


@pytest.mark.parametrize("callback", ["on_trial", "on_best"])
def test_a_callback_that_raises_pauses_the_study_and_the_same_call_goes_on(
    store: Store, callback: str
) -> None:
    def fail(trial: Trial) -> None:
        raise KeyError("mine")

    results: list[api.Result] = []
    with pytest.raises(
        CallbackError, match=rf"{callback} raised KeyError at trial 0: 'mine'"
    ) as caught:
        api.tune(spec(budget=SMALL), store=store, on_end=results.append, **{callback: fail})
    assert isinstance(caught.value.__cause__, KeyError)
    (record,) = store.studies()
    assert record.status is StudyStatus.PAUSED
    assert results == []
    result = api.tune(spec(budget=SMALL), store=store, on_end=results.append)
    assert result.record.id == record.id
    assert result.record.status is StudyStatus.COMPLETED
    assert results == [result]
