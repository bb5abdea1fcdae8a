"""A runner that is passed to `tune` as an object, registered under no name."""

from __future__ import annotations

import signal

import pytest

from autotune import api
from autotune.errors import CatalogError, ConflictError, MissingExtraError, RunnerError
from autotune.ports import Store
from autotune.registry import runner_class
from autotune.spec import StudyStatus, Wanted
from autotune.store import MemoryStore
from autotune.study import running
from autotune.study.assembly import assemble, make_runner_of
from autotune.study.preflight import run_by
from autotune.study.progress import Notice
from autotune.study.running import run_study
from tests.small_studies import QUIET, configs, spec
from tests.study.test_passed_searcher import interrupt_at

Simulated = runner_class("simulated", {})


class Counting(Simulated):  # type: ignore[misc, valid-type]
    """The simulated runner, which counts what it starts and whether it is closed."""

    def __init__(self, **options: object) -> None:
        super().__init__(noise=0.0, outlier_every=0, **options)
        self.started, self.closed = 0, False

    def start(self, request: object) -> None:
        self.started += 1
        super().start(request)

    def close(self) -> None:
        self.closed = True
        super().close()


def test_a_runner_that_is_passed_runs_the_trials_and_its_name_is_recorded(store: Store) -> None:
    runner = Counting()
    result = api.tune(spec(), store=store, runner=runner)
    assert result.record.study.runner == f"python:{__name__}.Counting"
    assert result.record.spec["runner"] == result.record.study.runner
    assert runner.started == len(result.trials)
    assert runner.closed
    assert configs(result.trials) == configs(api.tune(spec(), store=MemoryStore()).trials)


def test_an_interrupted_study_goes_on_with_the_same_kind_of_runner_only(store: Store) -> None:
    paused = api.tune(
        spec(), store=store, runner=Counting(time_scale=0.001), on_event=interrupt_at(3)
    )
    assert paused.record.status is StudyStatus.PAUSED
    api.act(store, paused.record.id, "resume")
    with pytest.raises(CatalogError, match=r"passed to autotune\.tune as an object"):
        run_study(store, paused.record.id)
    assert store.study(paused.record.id).status is StudyStatus.PAUSED
    stranger = Simulated(noise=0.0)
    with pytest.raises(ConflictError, match="the study runs on"):
        api.tune(spec(), store=store, study_id=paused.record.id, runner=stranger)
    whole = api.tune(spec(), store=store, runner=Counting())
    assert (whole.record.id, whole.record.status) == (paused.record.id, StudyStatus.COMPLETED)


class Headless(Counting):
    """Loses what it runs on with its first trial; if `signalled`, by the signal that this process
    gets too, as the processes of a job that is ended."""

    def __init__(self, *, signalled: bool) -> None:
        super().__init__()
        self._signalled = signalled

    def start(self, request: object) -> None:
        if self._signalled:
            signal.raise_signal(signal.SIGTERM)
        raise RunnerError("the head is gone")


def test_a_runner_that_ends_with_the_job_is_an_interruption_and_no_failure(store: Store) -> None:
    paused = api.tune(spec(), store=store, runner=Headless(signalled=True))
    assert paused.record.status is StudyStatus.PAUSED
    assert "the head is gone" in paused.record.message
    with pytest.raises(RunnerError, match="the head is gone"):
        api.tune(spec(), store=store, runner=Headless(signalled=False))
    assert store.study(paused.record.id).status is StudyStatus.FAILED


def test_a_runner_that_cannot_run_the_study_is_closed_and_named(store: Store) -> None:
    runner = Counting(capacity=1)
    with pytest.raises(RunnerError, match="has 1 here"):
        api.tune(spec(), store=store, runner=runner)
    assert runner.closed


def test_a_runner_that_raises_when_it_is_asked_is_closed() -> None:
    class Asked(Counting):
        def check_study(self, study: object) -> None:
            raise MissingExtraError("it lacks a package", remedy="install it")

    runner = Asked()
    with pytest.raises(MissingExtraError):
        make_runner_of(assemble(run_by(api.load_study(spec()), runner)), runner)
    assert runner.closed


class Returning(Counting):
    """One on a cluster whose nodes are away at first, and back after so many looks."""

    capacity: int

    def __init__(self, *, looks: int, **options: object) -> None:
        super().__init__(**options)
        self.looks, self.whole = looks, self.capacity
        self.capacity = 1 if looks > 0 else self.whole

    def close(self) -> None:
        self.looks -= 1
        self.capacity = 1 if self.looks > 0 else self.whole
        if self.looks < 0:
            super().close()


def test_a_study_that_ran_before_waits_under_a_service_for_nodes_that_are_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    begun = api.tune(
        spec(), store=store, runner=Returning(looks=0, time_scale=0.001), on_event=interrupt_at(3)
    ).record
    api.act(store, begun.id, "resume")
    heard = list[str]()

    def hear(event: object) -> None:
        if isinstance(event, Notice):
            heard.append(store.study(begun.id).message)

    result = run_study(store, begun.id, leave=True, runner=Returning(looks=2), on_event=hear)
    assert result.record.status is StudyStatus.COMPLETED
    assert [m for m in heard if "away" in m][:1] == [m for m in heard if "away" in m]
    assert heard[0].startswith(
        "waiting for nodes that are unavailable: the smallest config in the space needs"
    )


def test_who_waits_for_nodes_can_be_interrupted_and_paused(store: Store) -> None:
    begun = api.tune(
        spec(), store=store, runner=Returning(looks=0, time_scale=0.001), on_event=interrupt_at(3)
    ).record
    api.act(store, begun.id, "resume")
    run_study(store, begun.id, leave=True, runner=Returning(looks=10**6), interrupted=lambda: True)
    assert store.study(begun.id).status is StudyStatus.RUNNING  # for the next controller

    def ask_for_a_pause() -> bool:
        store.want(begun.id, Wanted.PAUSE, message="")
        return False

    run_study(
        store, begun.id, leave=True, runner=Returning(looks=10**6), interrupted=ask_for_a_pause
    )
    assert store.study(begun.id).status is StudyStatus.PAUSED


def test_specs_name_runners_as_before() -> None:
    assert api.load_study(spec(runner=QUIET)).runner == "simulated"
