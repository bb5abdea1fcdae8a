"""The simulated runner keeps the contract, is deterministic, and plays every fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import ConfigError, SpecError
from autotune.ports import AttemptEnded, StepsReported
from autotune.spec import FIELDS, FailureKind, ParallelConfig
from autotune.testing.knobs import EXPERT_KNOBS, base_configs, complaints_of, variations
from autotune.testing.runners import RunnerContract, ended, events_until_ended
from autotune_workers.runners.simulated import SIMULATED_RUNNER, SimulatedRunner
from tests.workers.requests import NANO, request


class TestSimulatedRunner(RunnerContract):
    @pytest.fixture
    def runner(self) -> SimulatedRunner:
        return SimulatedRunner()

    @pytest.fixture
    def request_for(self):
        return request


def outcome(runner: SimulatedRunner, *requests):
    for one in requests:
        runner.start(one)
    events = events_until_ended(runner, [r.id for r in requests])
    return [ended(events, r.id) for r in requests]


def test_the_same_seed_gives_the_same_trials_in_any_order() -> None:
    a, b = request(0, dp=2), request(1, dp=4)
    first = outcome(SimulatedRunner(seed=3), a, b)
    second = outcome(SimulatedRunner(seed=3), b, a)
    assert first == second[::-1]
    assert outcome(SimulatedRunner(seed=4), a) != first[:1]


def test_a_repeat_has_other_noise_but_the_same_truth() -> None:
    one, two = outcome(
        SimulatedRunner(noise=0.01, outlier_every=0), request(0), request(1, repeat=1)
    )
    assert one.measurement.step_times_s != two.measurement.step_times_s
    assert one.measurement.step_time_s == pytest.approx(two.measurement.step_time_s, rel=0.1)
    assert one.measurement.peak_memory_bytes == two.measurement.peak_memory_bytes


def test_another_attempt_comes_to_the_same() -> None:
    one, two = outcome(SimulatedRunner(), request(0), request(3, attempt=2))
    assert one.measurement == two.measurement


def test_a_lost_worker_is_drawn_for_each_attempt_and_other_faults_are_not() -> None:
    def failed(kind: str) -> set[bool]:
        runner = SimulatedRunner(faults={kind: 0.5})
        return {
            end.failure is None
            for end in outcome(runner, *(request(0, attempt=a) for a in range(1, 20)))
        }

    assert failed("worker_lost") == {True, False}
    assert len(failed("hang")) == 1


def test_a_config_that_needs_more_than_the_gpu_has_runs_out_of_memory() -> None:
    (end,) = outcome(SimulatedRunner(), request(0, memory_bytes=1000.0))
    assert end.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "on a rank, which has 1000 B" in end.failure.message


@pytest.mark.parametrize(
    "name",
    [
        "out_of_memory",
        "diverged",
        "hang",
        "timeout",
        "invalid",
        "metrics_missing",
        "worker_lost",
        "error",
    ],
)
def test_every_kind_of_failure_can_be_played(name: str) -> None:
    (end,) = outcome(SimulatedRunner(faults={name: 1.0}), request(0))
    assert end.failure.kind is FailureKind[name.upper()]


def test_a_fault_meets_only_the_attempt_that_it_names() -> None:
    runner = SimulatedRunner(faults=[{"kind": "worker_lost", "trial": 1, "attempt": 1}])
    ends = outcome(runner, request(0), request(1), request(1, attempt=2))
    assert [e.failure.kind if e.failure else None for e in ends] == [
        None,
        FailureKind.WORKER_LOST,
        None,
    ]


def test_duplicate_and_late_reports_follow_the_end() -> None:
    runner = SimulatedRunner(faults=[{"kind": "duplicate"}, {"kind": "late"}])
    asked = request(0)
    runner.start(asked)
    events = runner.poll(0.0)
    assert [type(e) for e in events[-3:]] == [AttemptEnded, AttemptEnded, StepsReported]


def test_time_can_be_played_at_scale() -> None:
    now = [0.0]
    runner = SimulatedRunner(time_scale=1.0, clock=lambda: now[0])
    asked = request(0)
    runner.start(asked)
    assert [type(e).__name__ for e in runner.poll(0.0)] == ["AttemptStarted"]
    now[0] = 1e6
    assert ended(runner.poll(0.0)).measurement is not None


def test_unknown_faults_are_refused() -> None:
    with pytest.raises(SpecError, match="hang"):
        SimulatedRunner(faults={"hangs": 1.0})
    with pytest.raises(SpecError, match="fault"):
        SimulatedRunner(faults=[{"type": "hang"}])


@pytest.mark.thorough
def test_every_value_of_every_knob_changes_the_truth_and_a_neutral_one_does_not() -> None:
    plain = request(0)
    plain = replace(plain, workload=replace(plain.workload, model=replace(NANO, num_layers=8)))
    assert not complaints_of(SIMULATED_RUNNER)

    def truth(config: ParallelConfig) -> float:
        (end,) = outcome(SimulatedRunner(noise=0.0, outlier_every=0), replace(plain, config=config))
        return end.measurement.step_time_s

    seen = set()
    for base in (
        config
        for config in base_configs(plain.workload)
        if config.zero_stage == 0 or config.dp == 4
    ):
        here = truth(base)
        for knob, value, config in variations(plain.workload, base):
            seen.add(knob.name)
            if SIMULATED_RUNNER.impossible(knob, value):
                with pytest.raises(ConfigError, match=f"cannot do {knob.name}="):
                    truth(config)
                continue
            assert (truth(config) == here) == (knob.name in SIMULATED_RUNNER.neutral), (
                f"{knob.name}={value} of {base}"
            )
    assert seen >= set(FIELDS) - set(EXPERT_KNOBS), "a dense model has no experts to spread"


def test_the_truth_is_seeded_by_the_config_as_it_is_written() -> None:
    for base in base_configs(request(0).workload):
        assert SIMULATED_RUNNER.key(base) == str(base)


def test_a_knob_of_the_study_makes_no_difference_that_does_not_exist() -> None:
    one = request(0, config={"extra": {"num_workers": 0}})
    two = request(1, config={"extra": {"num_workers": 4}})
    first, second = outcome(SimulatedRunner(), one, two)
    assert (
        first.measurement
        == second.measurement
        == outcome(SimulatedRunner(), request(2))[0].measurement
    )
