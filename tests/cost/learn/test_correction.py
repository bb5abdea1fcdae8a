"""Estimates given a study's trials: each config moves by what the trials say about it, and its
interval narrows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.learn.correction import Correction, after_one_trial
from autotune.cost.learn.uncertainty import config_sigma
from autotune.space import SearchSpace
from autotune.spec import Estimate, Measurement, ParallelConfig, Trial, TrialStatus
from tests.cost.examples import workload

CONSTANTS = Calibration(time_sigma=0.05, comm_sigma=0.0, level_sigma=0.25)
CONFIGS = [
    ParallelConfig(dp=8, micro_batch_size=m, accumulation_steps=32 // m) for m in (1, 2, 4, 8)
]
FAR = ParallelConfig(dp=1, tp=8, micro_batch_size=1, accumulation_steps=256)


def predicted(config: ParallelConfig) -> Estimate:
    """One config's estimate before any trial."""
    return estimate(workload(), config, calibration=CONSTANTS)


def trial(config: ParallelConfig, ratio: float) -> Trial:
    """A trial whose step took `ratio` times what the cost model says."""
    step = ratio * float(predicted(config).step_time_s)
    measurement = Measurement(step_times_s=(step,) * 5, tokens_per_step=1000, num_ranks=8)
    return Trial(config=config, number=0, status=TrialStatus.COMPLETED, measurement=measurement)


def given(config: ParallelConfig, *trials: Trial) -> Estimate:
    """The config's estimate given these trials."""
    space = SearchSpace.of(workload(), [*CONFIGS, FAR])
    return Correction(space, CONSTANTS).applied(config, predicted(config), trials)


def width(e: Estimate) -> float:
    """Standard deviation of the log step time that the interval stands for."""
    return math.log(float(e.step_time_high_s) / float(e.step_time_low_s)) / (2 * 1.6448536)


def test_interval_before_any_trial_holds_what_configs_share_and_a_configs_own_error() -> None:
    before = predicted(CONFIGS[3])
    assert width(before) == pytest.approx(math.hypot(0.05, 0.25), rel=1e-6)
    assert float(config_sigma(before)) == pytest.approx(0.05, rel=1e-6)


def test_trials_move_the_estimate_and_narrow_its_interval() -> None:
    one = given(CONFIGS[3], trial(CONFIGS[0], 1.3))
    three = given(CONFIGS[3], *(trial(c, 1.3) for c in CONFIGS[:3]))
    assert width(three) < width(one) < 0.15
    assert float(three.step_time_s) == pytest.approx(
        1.3 * float(predicted(CONFIGS[3]).step_time_s), rel=0.05
    )
    assert float(three.time_parts_s.total) == pytest.approx(float(three.step_time_s))
    assert float(three.tokens_per_s * three.step_time_s) == pytest.approx(
        float(predicted(CONFIGS[3]).tokens_per_s * predicted(CONFIGS[3]).step_time_s)
    )


def test_neighbours_of_a_trial_are_known_better_than_configs_of_other_parts() -> None:
    told = trial(CONFIGS[0], 1.3)
    assert width(given(CONFIGS[1], told)) < width(given(FAR, told))
    near = math.log(float(given(CONFIGS[1], told).level))
    assert near > math.log(float(given(FAR, told).level)) > 0


def test_a_config_that_ran_is_known_best() -> None:
    told = trial(CONFIGS[0], 1.3)
    again = given(CONFIGS[0], told)
    assert float(again.step_time_s) == pytest.approx(
        1.3 * float(predicted(CONFIGS[0]).step_time_s), rel=0.03
    )
    assert width(again) <= min(width(given(config, told)) for config in [*CONFIGS[1:], FAR])


def test_after_a_trial_far_off_intervals_stay_wide_until_trials_agree() -> None:
    """The scale of the errors is the study's own: a program that is as fast as predicted is known
    better than one that takes twice as long, also where it is off."""
    as_predicted, far_off = (
        width(given(CONFIGS[3], trial(CONFIGS[0], ratio))) for ratio in (1.0, 2.2)
    )
    assert far_off > 1.5 * as_predicted
    others = [trial(c, 2.2) for c in CONFIGS[:3]]
    assert width(given(CONFIGS[3], *others)) < far_off
    scattered = [trial(c, ratio) for c, ratio in zip(CONFIGS[:3], (1.1, 2.2, 1.5), strict=True)]
    assert width(given(CONFIGS[3], *scattered)) > 2.0 * width(
        given(CONFIGS[3], *(trial(c, 1.5) for c in CONFIGS[:3]))
    )


def test_repeats_of_a_config_count_once() -> None:
    once = given(CONFIGS[2], trial(CONFIGS[0], 1.3))
    assert given(CONFIGS[2], *[trial(CONFIGS[0], 1.3)] * 5) == once


def test_the_order_in_which_estimates_are_asked_for_does_not_matter() -> None:
    told, space = [trial(c, 1.2) for c in CONFIGS[:2]], SearchSpace.of(workload(), [*CONFIGS, FAR])
    kept = Correction(space, CONSTANTS)
    kept.applied(CONFIGS[2], predicted(CONFIGS[2]), told[:1])
    assert kept.applied(FAR, predicted(FAR), told) == given(FAR, *told)


def test_without_measured_trials_the_estimate_stays_as_it_is() -> None:
    unmeasured = replace(trial(CONFIGS[0], 1.3), status=TrialStatus.RUNNING, measurement=None)
    assert given(CONFIGS[1], unmeasured) == predicted(CONFIGS[1])


def test_width_after_one_trial_is_between_that_of_a_repeat_and_that_before() -> None:
    before = predicted(CONFIGS[1])
    assert 0.02 < after_one_trial(before) < math.expm1(1.645 * width(before))


def test_estimates_of_earlier_versions_have_no_level() -> None:
    values = predicted(CONFIGS[0]).to_dict()
    for name in ("level", "level_sigma", "mfu_peak_flops_per_s"):
        del values[name]
    old = Estimate.from_dict(values)
    assert (old.level, old.level_sigma) == (1.0, 0.0)


@pytest.mark.thorough
def test_constants_that_are_far_off_are_given_up_and_right_ones_kept() -> None:
    """Tensor groups that take four times as long as they should: the prior of a pair's clusters
    makes that a common factor, the wider one finds the cause."""
    off = replace(CONSTANTS, intra_efficiency=CONSTANTS.intra_efficiency / 4)
    space = [
        ParallelConfig(dp=8 // tp, tp=tp, micro_batch_size=m, accumulation_steps=32 * tp // m)
        for tp in (1, 2, 4, 8)
        for m in (1, 2)
    ]
    table = SearchSpace.of(workload(), space)

    def after(truth: Calibration) -> Estimate:
        ran = [estimate(workload(), c, calibration=truth).step_time_s for c in space[:-1]]
        trials = [
            trial(c, float(step) / float(predicted(c).step_time_s))
            for c, step in zip(space[:-1], ran, strict=True)
        ]
        return Correction(table, CONSTANTS).applied(space[-1], predicted(space[-1]), trials)

    measured = float(estimate(workload(), space[-1], calibration=off).step_time_s)
    found = after(off)
    assert float(found.step_time_low_s) < measured < float(found.step_time_high_s)
    assert measured > 1.3 * float(predicted(space[-1]).step_time_s)
    assert float(after(CONSTANTS).step_time_s) == pytest.approx(
        float(predicted(space[-1]).step_time_s), rel=0.01
    )
