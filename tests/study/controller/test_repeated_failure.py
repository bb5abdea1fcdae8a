"""A program that fails in the same way whatever the config ends the study with that cause, not with
its budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune import api
from autotune.ports import Store
from autotune.spec import (
    Failure,
    FailureKind,
    Measurement,
    ParallelConfig,
    StudyStatus,
    Trial,
    TrialStatus,
)
from autotune.study.controller.repeated_failure import SAME_FAILURES, repeated_failure
from tests.small_studies import spec

MISSING = Failure(
    kind=FailureKind.ERROR,
    message="ModuleNotFoundError: no data",
    exception="ModuleNotFoundError",
    step=None,
)


def failed(number: int, **changes: object) -> Trial:
    config = ParallelConfig(dp=8, micro_batch_size=number + 1)
    return Trial(
        config=config, number=number, status=TrialStatus.FAILED, failure=replace(MISSING, **changes)
    )


def test_three_configs_that_fail_alike_are_the_programs_fault() -> None:
    trials = [failed(number) for number in range(SAME_FAILURES)]
    assert (
        "in the same way before their first step, with error: ModuleNotFoundError: no data"
        in repeated_failure(trials)
    )
    assert not repeated_failure(trials[:-1])


@pytest.mark.parametrize(
    "other",
    [
        failed(2, exception="ValueError"),
        failed(2, kind=FailureKind.INVALID),
        failed(2, step=3),
        Trial(
            config=ParallelConfig(dp=4),
            number=2,
            status=TrialStatus.COMPLETED,
            measurement=Measurement(step_times_s=(0.1,), tokens_per_step=1, num_ranks=1),
        ),
    ],
)
def test_anything_else_among_them_keeps_the_search_going(other: Trial) -> None:
    assert not repeated_failure([failed(0), failed(1), other, failed(3)])


@pytest.mark.parametrize(
    "kind",
    [FailureKind.OUT_OF_MEMORY, FailureKind.DIVERGED, FailureKind.HANG, FailureKind.WORKER_LOST],
)
def test_failures_that_depend_on_the_config_never_count(kind: FailureKind) -> None:
    assert not repeated_failure([failed(number, kind=kind) for number in range(9)])


@pytest.mark.parametrize(
    "exception",
    [
        "unrecognized arguments: --micro-batch {n} --dp={n}",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--per_device', '{n}']",
        "FileNotFoundError: /tmp/autotune-launch-{n}/train.json",
        "RuntimeError: [127.0.0.1]:2971{n}: address already in use",
    ],
)
def test_values_of_options_that_the_program_does_not_know_folders_and_ports_make_no_other_cause(
    exception: str,
) -> None:
    assert repeated_failure(
        [failed(n, exception=exception.format(n=n)) for n in range(SAME_FAILURES)]
    )


def test_figures_that_are_the_configs_make_another_cause() -> None:
    heads = "ValueError: tp={n} must divide 12 heads"
    assert not repeated_failure(
        [failed(n, exception=heads.format(n=n)) for n in range(SAME_FAILURES)]
    )


def test_the_same_config_again_is_no_other_config() -> None:
    again = [replace(failed(0), number=number) for number in range(5)]
    assert not repeated_failure(again)


def test_a_study_ends_with_the_cause_and_keeps_its_budget(store: Store) -> None:
    broken = {"kind": "simulated", "faults": [{"kind": "invalid", "probability": 1.0}]}
    result = api.tune(
        spec(runner=broken, budget={"max_trials": 20, "max_failed_trials": 20}), store=store
    )
    assert result.record.status is StudyStatus.FAILED
    assert sum(trial.status is TrialStatus.FAILED for trial in result.trials) == SAME_FAILURES
    assert (
        "failed in the same way before their first step, with invalid: injected fault: invalid"
        in result.record.message
    )
