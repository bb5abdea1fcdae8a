"""The noise between runs: its prior, what repeats teach, and runs that were disturbed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.reward import (
    RunNoise,
    squares_of_rounds,
    steady_rounds,
    undisturbed,
    within_run_variance,
)
from autotune.spec import Measurement


def run(*times: float) -> Measurement:
    return Measurement(step_times_s=times, tokens_per_step=256)


def test_before_any_repeat_two_runs_differ_by_the_prior() -> None:
    noise = RunNoise.of([run(*[0.1] * 8)])
    assert math.sqrt(noise.variance) == pytest.approx(0.02)
    assert noise.half_width(1) == pytest.approx(
        3.182 * 0.02 * math.sqrt(2), rel=1e-3
    )  # Student's t of 3 degrees of freedom
    assert noise.half_width(4) == pytest.approx(noise.half_width(1) / 2)
    assert noise.half_width(1, configs=5) > noise.half_width(1)


def test_rounds_teach_the_noise_and_a_machine_that_drifts_does_not_count_as_noise() -> None:
    rng = np.random.default_rng(0)
    drift = np.linspace(0, 1, 40)
    speeds = [np.exp(level + drift + rng.normal(0, 0.05, 40)) for level in (0.0, 0.3, -0.2)]
    squares, freedom = squares_of_rounds(speeds)
    assert freedom == 78
    assert math.sqrt(squares / freedom) == pytest.approx(0.05, rel=0.2)
    assert math.sqrt(RunNoise.of([], squares, freedom).variance) == pytest.approx(0.05, rel=0.2)


def test_a_config_may_drop_out_of_the_rounds() -> None:
    squares, freedom = squares_of_rounds([[1.0, 1.1, 1.0], [2.0, 2.0, 2.1], [3.0]])
    assert freedom == 2
    assert squares > 0
    assert squares_of_rounds([[1.0, 1.1]]) == (0.0, 0)


def test_steps_that_follow_one_another_tell_less_of_their_mean() -> None:
    alternating, blocks = run(*[0.1, 0.12] * 8), run(*[0.1] * 8, *[0.12] * 8)
    assert within_run_variance(blocks) > 5 * within_run_variance(alternating) > 0
    assert within_run_variance(run(0.1)) == 0.0


def test_a_burst_in_one_run_is_foreign_and_a_slow_tail_in_all_runs_is_not() -> None:
    quiet, burst = run(*[0.1, 0.101] * 6), run(*[0.1] * 8, *[0.4] * 3, 0.1)
    assert undisturbed([quiet, burst, quiet]) == [True, False, True]
    assert undisturbed([burst, burst]) == [True, True]


@pytest.mark.thorough
def test_rounds_of_a_machine_with_twice_the_noise_of_the_prior_are_soon_believed() -> None:
    """Intervals of a difference of two of four configs, on machines with the prior's noise and with
    twice as much."""
    rng = np.random.default_rng(1)
    for between, rounds, least in ((0.02, 2, 0.95), (0.04, 2, 0.88), (0.04, 4, 0.89)):
        held = 0
        for _ in range(2000):
            logs = rng.normal(0.0, between, (4, rounds))
            noise = RunNoise.of([], *squares_of_rounds(np.exp(logs).tolist()))
            held += bool(abs(logs[0].mean() - logs[1].mean()) < noise.half_width(rounds))
        assert held / 2000 > least


def test_a_run_must_be_further_behind_than_by_the_standard_deviation_of_a_difference() -> None:
    noise = RunNoise()
    known = RunNoise(freedom=1e6)
    assert known.behind(0.977) == pytest.approx(2.0 * math.sqrt(2 * known.variance), rel=0.01)
    assert noise.behind(0.977) > 1.5 * known.behind(0.977)


def test_two_rounds_between_runs_of_the_default_config_that_disagree_do_not_count() -> None:
    steady, slow = run(*[0.1] * 6), run(*[0.2] * 6)
    assert steady_rounds([steady, steady, slow, slow]) == [True, True, True, True], (
        "it changed between the rounds"
    )
    assert steady_rounds([steady, slow, slow]) == [False, False, True]
    assert steady_rounds([steady]) == [True]
    assert steady_rounds([]) == []
