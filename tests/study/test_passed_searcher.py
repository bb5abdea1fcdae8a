"""A searcher that is passed to `tune` as an object, registered under no name."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from autotune import api
from autotune.errors import CatalogError, ConflictError, SpecError
from autotune.ports import Store
from autotune.search import Problem, Searcher, make_searcher, searcher_name
from autotune.space import SearchSpace
from autotune.spec import StudyStatus, TrialPurpose
from autotune.store import MemoryStore
from autotune.study.progress import TrialStarted
from autotune.study.running import run_study
from tests.small_studies import QUIET, configs, spec


class LastFirst(Searcher):
    """The candidates from the end of the space."""

    def propose(self) -> tuple[int, str] | None:
        free = self.free()
        return (int(free[-1]), "the last of those left") if len(free) else None


def every_second(problem: Problem) -> Searcher:
    """A function makes a searcher as well as a class does."""
    return LastFirst(problem)


def test_a_class_that_is_passed_proposes_the_trials_and_its_name_is_recorded(store: Store) -> None:
    result = api.tune(spec(), store=store, searcher=LastFirst)
    assert result.record.study.searcher == f"python:{__name__}.LastFirst"
    assert result.record.spec["searcher"] == result.record.study.searcher
    study = result.record.study
    searcher = make_searcher(LastFirst, SearchSpace.build(study.workload, study.space))
    asked = [t.config for t in result.trials if t.purpose is TrialPurpose.SEARCH]
    assert asked == searcher.ask(6)
    assert "the last of those left" in {t.reason for t in result.trials}


def test_a_study_object_takes_another_searcher_by_name_or_by_function(store: Store) -> None:
    study = api.load_study(spec())
    assert api.tune(study, store=store, searcher="random").record.study.searcher == "random"
    assert api.tune(study, store=store, searcher=every_second).record.study.searcher.endswith(
        ".every_second"
    )
    with pytest.raises(CatalogError, match="did you mean random"):
        api.tune(study, store=store, searcher="randon")


def test_an_interrupted_study_goes_on_with_the_same_class_as_if_it_had_not_been(
    store: Store,
) -> None:
    slow = spec(runner=QUIET | {"time_scale": 0.001})
    paused = api.tune(slow, store=store, searcher=LastFirst, on_event=interrupt_at(3))
    assert paused.record.status is StudyStatus.PAUSED
    resumed = api.tune(slow, store=store, searcher=LastFirst)
    assert resumed.record.id == paused.record.id
    undisturbed = api.tune(slow, store=MemoryStore(), searcher=LastFirst)
    assert configs(t for t in resumed.trials if t.status != "CANCELLED") == configs(
        undisturbed.trials
    )


def test_a_study_whose_searcher_is_not_here_waits_for_whoever_has_it(store: Store) -> None:
    """A service on the same store cannot make the searcher: it leaves the study PAUSED and says
    what to do."""
    slow = spec(runner=QUIET | {"time_scale": 0.001})
    study = api.tune(slow, store=store, searcher=LastFirst, on_event=interrupt_at(3)).record
    api.act(store, study.id, "resume")
    with pytest.raises(CatalogError, match=r"passed to autotune\.tune as an object"):
        run_study(store, study.id)
    left = store.study(study.id)
    assert left.status is StudyStatus.PAUSED
    assert "searcher=" in left.message
    with pytest.raises(ConflictError, match="searches with"):
        run_study(store, study.id, searcher=every_second)
    assert api.tune(slow, store=store, searcher=LastFirst).record.status is StudyStatus.COMPLETED


def test_a_fresh_searcher_is_taken_as_it_is_and_a_new_one_resumes_the_study(store: Store) -> None:
    study = api.load_study(spec())

    def fresh() -> Searcher:
        return LastFirst(Problem(space=SearchSpace.of_study(study)))

    by_class = api.tune(study, store=MemoryStore(), searcher=LastFirst)
    paused = api.tune(study, store=store, searcher=fresh(), on_event=interrupt_at(3))
    assert paused.record.status is StudyStatus.PAUSED
    assert paused.record.study.searcher == searcher_name(LastFirst)
    whole = api.tune(study, store=store, searcher=fresh())
    assert whole.record.id == paused.record.id
    searched = [line for line in configs(whole.trials) if not line.endswith("CANCELLED")]
    assert searched == configs(by_class.trials)


def test_a_searcher_that_was_used_or_searches_something_else_is_refused(store: Store) -> None:
    study = api.load_study(spec())
    used = LastFirst(Problem(space=SearchSpace.of_study(study)))
    used.ask(1)
    other = LastFirst(
        Problem(space=SearchSpace.of(study.workload, [SearchSpace.of_study(study)[0]]))
    )
    guessed = api.load_study(spec(enqueue=["tp=2"]))
    without = LastFirst(Problem(space=SearchSpace.of_study(guessed)))
    for asked, searcher, why in (
        (study, used, "must be new"),
        (study, other, "must search its space"),
        (guessed, without, "enqueued configs first"),
    ):
        with pytest.raises(SpecError, match=why):
            api.tune(asked, store=store, searcher=searcher)
    assert store.studies() == []


def interrupt_at(trial: int) -> Any:
    """An `on_event` that presses Ctrl-C when that trial begins."""

    def hear(event: object) -> None:
        if isinstance(event, TrialStarted) and event.number == trial:
            signal.raise_signal(signal.SIGINT)

    return hear
