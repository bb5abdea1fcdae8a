"""A study whose cluster was never measured begins with a quick calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from autotune import api
from autotune.detect import local_cluster
from autotune.errors import ConflictError, RunnerError
from autotune.ports import Store
from autotune.spec import Study, StudyStatus
from autotune.study import quick_calibration
from autotune.study.assembly import assemble
from autotune.study.progress import LoopEvent, Notice, StudyOpened, TrialAsked
from autotune.study.quick_calibration import calibrate_quickly, needs_calibration
from tests.report.worlds import trial
from tests.shortcuts import present
from tests.study.hearing import notices

MEASURED = {
    "matmul": [{"m": 512, "n": 512, "k": 512, "precision": "fp32", "flops_per_s": 2.5e10}],
    "memory_bytes_per_s": 8e9,
    "host_overhead_s": 2e-3,
    "concurrency": [{"ranks": 1, "flops_per_s": 2.5e10}, {"ranks": 2, "flops_per_s": 2e10}],
}


def laptop(**changes: Any) -> Study:
    return api.load_study(
        "search_spaces/studies/laptop.yaml", overrides={"runner": "local", "enqueue": [], **changes}
    )


@contextmanager
def measured_by(calibrate: Callable[..., dict[str, Any]]) -> Iterator[None]:
    """Whatever calibrates, it is this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick_calibration, "calibrator", lambda name: calibrate)
        yield


def calibrated(
    study: Study, store: Store, calibrate: Callable[..., dict[str, Any]]
) -> tuple[Any, list[str]]:
    """What came of it, and what was said."""
    said: list[str] = []
    with measured_by(calibrate):
        return calibrate_quickly(study, store, notices(said), lambda: False), said


@pytest.mark.parametrize(
    ("changes", "past", "configs", "wanted"),
    [
        ({}, 0, 300, True),
        ({"runner": {"kind": "ray", "num_cpus": 4}}, 0, 300, True),
        ({"calibrate": False}, 0, 300, False),
        ({"runner": "simulated"}, 0, 300, False),
        ({"cluster": "h100-sxm-1x8", "runner": {"kind": "local", "device": "cpu"}}, 0, 300, False),
        ({}, 1, 300, False),
        ({}, 0, 14, False),
    ],
    ids=[
        "local",
        "ray",
        "left out",
        "simulated",
        "another cluster",
        "has begun",
        "tries the whole space",
    ],
)
def test_who_begins_with_a_calibration(
    store: Store, changes: dict[str, Any], past: int, configs: int, wanted: bool
) -> None:
    study = laptop(**changes)
    assert needs_calibration(study, store, [trial(n) for n in range(past)], configs) is wanted


def test_it_is_stored_as_quick_shown_and_used_until_a_full_one_replaces_it(store: Store) -> None:
    study = laptop()
    asked: dict[str, Any] = {}

    def calibrate(progress: Callable[[str, float], None], **options: Any) -> dict[str, Any]:
        asked.update(options)
        progress("alone on 1 rank", 0.0)
        return MEASURED

    constants, said = calibrated(study, store, calibrate)
    assert (asked["quick"], asked["runner"]) == (True, "local")
    assert constants.source.startswith("quick calibration: measured on")
    assert said[0].startswith(f"the cluster {local_cluster().name} has no calibration, so")
    assert said[1].startswith("calibrating: ")
    assert said[-1].startswith("calibrated in <1 s")
    assert not needs_calibration(study, store, [], 300)
    assembly = assemble(study, store)
    assert assembly.calibration == constants
    assert assembly.predict(assembly.baseline) != assemble(study).predict(assembly.baseline)
    store.save_calibration(
        local_cluster().name, "native", replace(constants, source="measured").to_dict()
    )
    found = present(assemble(study, store).calibration)
    assert found.source == "measured"


def test_a_machine_that_cannot_be_measured_keeps_the_shipped_constants(store: Store) -> None:
    def broken(**_: Any) -> dict[str, Any]:
        raise RunnerError("ranks cannot be started")

    constants, said = calibrated(laptop(), store, broken)
    assert constants is None
    assert (
        said[-1]
        == "the cluster could not be calibrated, so predictions use the shipped constants: ranks cannot be started"
    )
    assert needs_calibration(laptop(), store, [], 300)


def test_nothing_is_measured_for_a_study_that_cannot_be_run_here(store: Store) -> None:
    """The runner comes first: a calibration shares its connection to Ray."""

    def calibrate(**_: Any) -> dict[str, Any]:
        raise AssertionError("it was measured")

    study = laptop(runner={"kind": "local", "max_ranks": 1}, space={"world_sizes": [2]})
    record = api.submit_study(store, study)
    with measured_by(calibrate), pytest.raises(RunnerError, match="needs 2 ranks"):
        api.run_study(store, record.id)
    assert store.study(record.id).status is StudyStatus.FAILED


def test_a_lease_that_is_lost_meanwhile_ends_the_controller(store: Store) -> None:
    def fenced(**_: Any) -> dict[str, Any]:
        raise ConflictError("the lease was taken over")

    with pytest.raises(ConflictError):
        calibrated(laptop(), store, fenced)


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_a_request_through_the_store_ends_the_calibration_and_nothing_is_started(
    store: Store, action: str
) -> None:
    asks: list[bool] = []

    def calibrate(interrupted: Callable[[], bool], **_: Any) -> dict[str, Any]:
        assert not interrupted()
        api.act(store, store.studies()[0].id, action)
        asks.append(interrupted())
        raise RunnerError("the calibration was interrupted")

    said: list[str] = []
    with measured_by(calibrate):
        result = api.tune(laptop(), store=store, on_event=notices(said))
    assert asks == [True]
    assert (
        result.record.status
        is {"pause": StudyStatus.PAUSED, "cancel": StudyStatus.CANCELLED}[action]
    )
    assert not result.trials
    assert said[-1] == "the calibration was interrupted"


@pytest.mark.alone
@pytest.mark.slow
def test_a_real_study_is_calibrated_before_its_first_trial_and_predicts_the_same_when_it_goes_on(
    store: Store,
) -> None:
    seen: list[LoopEvent] = []
    study = laptop(**{"budget.max_trials": 1, "measure.final_rounds": 1, "measure.finalists": 0})
    result = api.tune(study, store=store, on_event=seen.append)
    kinds = [type(event) for event in seen]
    said = [event.message for event in seen if isinstance(event, Notice)]
    assert any(message.startswith("calibrated in") for message in said)
    last = max(
        i
        for i, event in enumerate(seen)
        if isinstance(event, Notice) and "calibrat" in event.message
    )
    assert last < kinds.index(StudyOpened) < kinds.index(TrialAsked)
    assert [e.kind for e in store.events(result.record.id)].count("cluster.calibrated") == 1
    baseline = result.trials[0]
    again = assemble(study, store).predict(baseline.config)
    assert float(again.step_time_s) == pytest.approx(float(present(baseline.estimate).step_time_s))
