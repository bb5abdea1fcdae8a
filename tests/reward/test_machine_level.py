"""Phases of a machine from repeated runs of the baseline, and the levels of the trials between
them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.reward import MachineLevels, at_first_level, counted_once
from autotune.spec import (
    Estimate,
    Measurement,
    ParallelConfig,
    Reward,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from tests.benchmarks.drift import prediction
from tests.shortcuts import present

DEFAULT = ParallelConfig()
BASELINE, FINAL = TrialPurpose.BASELINE, TrialPurpose.FINAL


def trial(
    number: int,
    time_s: float,
    purpose: TrialPurpose = TrialPurpose.SEARCH,
    *,
    config: ParallelConfig | None = None,
    estimate: Estimate | None = None,
) -> Trial:
    is_default = purpose is BASELINE
    return Trial(
        config=config or (DEFAULT if is_default else ParallelConfig(micro_batch_size=number + 2)),
        number=number,
        purpose=purpose,
        status=TrialStatus.COMPLETED,
        measurement=Measurement(step_times_s=(time_s,) * 6, tokens_per_step=1000),
        reward=Reward(
            total=0.2 - 0.8 * math.log(time_s),
            throughput=-math.log(time_s),
            stability=1.0,
            parts={"tokens_per_s_ratio": 1 / time_s},
        ),
        estimate=estimate,
    )


def runs(*times: float) -> list[Trial]:
    """Runs of the baseline, with two trials after each."""
    return [
        trial(3 * i + k, t, BASELINE if k == 0 else TrialPurpose.SEARCH)
        for i, t in enumerate(times)
        for k in range(3)
    ]


def test_runs_that_the_noise_explains_change_nothing() -> None:
    trials = runs(1.0, 1.03, 0.98, 1.05)
    levels = MachineLevels(trials)
    assert not levels.is_uneven
    assert levels.now == 0.0
    assert at_first_level(trials, 0.2) == trials


def test_without_a_default_config_there_is_no_level() -> None:
    levels = MachineLevels([trial(0, 1.0), trial(1, 4.0)])
    assert levels.at(1).slow == levels.at(1).fast == levels.now == 0.0
    assert not levels.phases


@pytest.mark.parametrize(
    ("times", "speedups", "odd"),
    [
        pytest.param((1.0, 1.03, 0.98, 1.05), [], set(), id="what the noise explains"),
        pytest.param((1.0, 4.0, 1.0), [], {3}, id="one run that is off"),
        pytest.param((1.0, 4.0, 4.1), [1 / 4.05], set(), id="two that agree"),
        pytest.param((1.0, 4.0, 2.0), [], {3, 6}, id="runs that agree with nothing"),
        pytest.param((1.0, 4.0, 4.0, 1.0, 1.01), [0.25, 4.0], set(), id="a change back"),
    ],
)
def test_two_runs_that_agree_are_a_change(
    times: tuple[float, ...], speedups: list[float], odd: set[int]
) -> None:
    levels = MachineLevels(runs(*times))
    assert [c.speedup for c in levels.changes] == pytest.approx(speedups, rel=0.01)
    assert levels.odd == odd


def test_a_change_has_the_runs_before_and_after_it() -> None:
    (change,) = MachineLevels(runs(1.0, 4.0, 4.1)).changes
    assert (change.before.runs, change.after.runs) == ((0,), (3, 6))


def test_trials_between_two_changes_are_at_the_level_of_their_time() -> None:
    levels = MachineLevels(runs(1.0, 4.0, 4.0, 1.0, 1.01))
    assert levels.at(7).slow == pytest.approx(-math.log(4))
    assert levels.now == pytest.approx(0.0, abs=0.01)


def test_predictions_tell_when_the_machine_changed() -> None:
    """It became four times slower before the third of four trials."""
    told = prediction(1.0, 0.1)
    trials = [
        trial(0, 1.0, BASELINE),
        *(trial(n, t, estimate=told) for n, t in enumerate((1.05, 0.95, 4.2, 3.9), 1)),
        trial(5, 4.0, BASELINE),
        trial(6, 4.0, BASELINE),
    ]
    levels = MachineLevels(trials)
    assert [levels.at(n).fast for n in range(1, 5)] == pytest.approx(
        [0.0, 0.0, -math.log(4), -math.log(4)]
    )
    assert all(levels.at(n).is_known for n in range(1, 5))
    seen = at_first_level(trials, 0.2)
    assert [t.measurement.step_time_s for t in seen[1:5] if t.measurement] == pytest.approx(
        [1.05, 0.95, 1.05, 0.975]
    )


def test_one_wrong_prediction_does_not_move_the_change() -> None:
    told = prediction(1.0, 0.1)
    times = (1.0, 4.0, 1.0, 1.0, 4.0)
    trials = [
        trial(0, 1.0, BASELINE),
        *(trial(n, t, estimate=told) for n, t in enumerate(times, 1)),
        trial(6, 4.0, BASELINE),
        trial(7, 4.0, BASELINE),
    ]
    levels = MachineLevels(trials)
    assert [levels.at(n).fast for n in range(1, 6)] == pytest.approx(
        [0.0, 0.0, 0.0, 0.0, -math.log(4)]
    )


def test_where_nothing_was_predicted_both_levels_are_possible_and_the_fast_one_counts() -> None:
    trials = [
        trial(0, 1.0, BASELINE),
        trial(1, 2.0),
        trial(2, 2.0),
        trial(3, 4.0, BASELINE),
        trial(4, 4.0, BASELINE),
    ]
    levels = MachineLevels(trials)
    assert (levels.at(1).slow, levels.at(1).fast) == (pytest.approx(-math.log(4)), 0.0)
    assert not levels.at(1).is_known
    assert levels.seen(trials[1], 0.2) == trials[1]
    best = present(levels.best_reward(trials[1], 0.2))
    assert best.throughput == pytest.approx(-math.log(0.5))
    assert best.total == pytest.approx(0.2 - 0.8 * math.log(0.5))
    assert best.parts["tokens_per_s_ratio"] == pytest.approx(2.0)


@pytest.mark.parametrize("is_predicted", [True, False])
def test_what_disturbed_a_single_run_explains_trials_before_it_only_where_they_were_predicted(
    is_predicted: bool,
) -> None:
    told = prediction(1.0, 0.1) if is_predicted else None
    trials = [
        trial(0, 1.0, BASELINE),
        trial(1, 1.0, estimate=told),
        trial(2, 4.0, estimate=told),
        trial(3, 4.0, BASELINE),
        trial(4, 1.0, BASELINE),
    ]
    levels = MachineLevels(trials)
    assert not levels.changes
    assert levels.at(1).slow == levels.at(1).fast == 0.0
    assert levels.at(2).fast == pytest.approx(-math.log(4) if is_predicted else 0.0)
    assert levels.is_uneven is is_predicted


def test_levels_that_take_figures_over_are_those_of_all_trials() -> None:
    rng = np.random.default_rng(0)
    speeds = np.repeat([1.0, 1.0, 4.0, 1.4, 1.0], 4) * np.exp(rng.normal(0, 0.02, 20))
    trials = runs(*speeds.tolist())
    levels = MachineLevels()
    for count in range(1, len(trials) + 1):
        levels, anew = MachineLevels(trials[:count], earlier=levels), MachineLevels(trials[:count])
        assert (levels.phases, levels.odd) == (anew.phases, anew.odd)
        assert [levels.at(t.number) for t in trials] == [anew.at(t.number) for t in trials]
    assert len(levels.changes) == 3


def test_the_noise_of_phases_is_that_of_all_their_runs() -> None:
    """Two runs at the second level agree as far as the spread of the earlier runs lets them: within
    the prior's 2% they would not."""
    steady, noisy = (
        runs(1.0, 1.0, 1.0, 1.0, 4.0, 4.6),
        runs(1.0, 1.09, 0.92, 1.1, 0.91, 1.08, 0.9, 1.12, 4.0, 4.6),
    )
    assert MachineLevels(steady).changes == ()
    (change,) = MachineLevels(noisy).changes
    assert change.after.runs == (24, 27)
    assert change.speedup == pytest.approx(
        1
        / math.sqrt(4.0 * 4.6)
        * math.exp(np.log([1.0, 1.09, 0.92, 1.1, 0.91, 1.08, 0.9, 1.12]).mean())
    )


def test_final_measurements_are_left_as_they_are() -> None:
    trials = [*runs(1.0, 4.0, 4.0), trial(20, 4.0, FINAL), trial(21, 1.0, FINAL, config=DEFAULT)]
    assert at_first_level(trials, 0.2)[-2:] == trials[-2:]
    assert len(MachineLevels(trials).changes) == 1


def test_a_config_counts_once_the_default_one_with_its_first_run_and_any_other_with_its_last() -> (
    None
):
    again = ParallelConfig(micro_batch_size=50)
    trials = [
        trial(0, 1.0, BASELINE),
        trial(1, 2.0, config=again),
        trial(2, 1.0, BASELINE),
        trial(3, 1.0, config=again),
        trial(4, 1.0, FINAL, config=again),
    ]
    assert [t.number for t in counted_once(trials)] == [0, 3]
