"""Trials whose sends stalled tell nothing about other configs; a cluster that is slow throughout is
believed."""

from __future__ import annotations

import pytest

from autotune.cost import calibration_for, estimate
from autotune.cost.learn.correction import Correction
from autotune.space import SearchSpace
from autotune.spec import (
    ClusterSpec,
    Estimate,
    Measurement,
    ParallelConfig,
    Trial,
    TrialStatus,
    Workload,
    catalog,
)

WORKLOAD = Workload(
    model=catalog.model("llama-8b"), cluster=ClusterSpec.of("h100-sxm", num_nodes=2, gpus_per_node=8), seq_len=4096, global_batch_size=256, trainer="nanotron"
)  # fmt: skip
OVER = ParallelConfig(pp=2, dp=8, micro_batch_size=1, accumulation_steps=32, zero_stage=1)
ALSO_OVER = ParallelConfig(
    tp=2, pp=2, dp=4, micro_batch_size=2, accumulation_steps=32, zero_stage=1
)
WITHIN = ParallelConfig(tp=4, dp=4, micro_batch_size=4, accumulation_steps=16, zero_stage=1)
OTHER = ParallelConfig(tp=2, dp=8, micro_batch_size=1, accumulation_steps=32, zero_stage=1)


def predicted(config: ParallelConfig) -> Estimate:
    """One config's estimate before any trial."""
    return estimate(WORKLOAD, config)


def given(config: ParallelConfig, *trials: tuple[ParallelConfig, float]) -> Estimate:
    """The config's estimate given trials of these configs that took so many times the predicted
    step."""
    told = []
    for number, (tried, times) in enumerate(trials):
        step_s = times * float(predicted(tried).step_time_s)
        measurement = Measurement(step_times_s=(step_s,) * 5, tokens_per_step=1000, num_ranks=16)
        told.append(
            Trial(
                config=tried, number=number, status=TrialStatus.COMPLETED, measurement=measurement
            )
        )
    space = SearchSpace.of(WORKLOAD, [OVER, ALSO_OVER, WITHIN, OTHER])
    return Correction(space, calibration_for(WORKLOAD)).applied(config, predicted(config), told)


def stalled(config: ParallelConfig) -> float:
    """How many times as long the config's step takes when its sends stall."""
    found = predicted(config)
    return float(found.stalled_step_time_s) / float(found.step_time_s)


def test_a_first_trial_whose_sends_stalled_moves_nothing() -> None:
    """nanotron_h100.csv, 8B on 16 GPUs: this config took 24.5 s where one with tp=2 took 9.3 s."""
    slow = 24.5 / float(predicted(OVER).step_time_s)
    assert slow > 2.0
    assert given(OTHER, (OVER, slow)) == predicted(OTHER)
    # a config that cannot stall is believed at once
    assert float(given(OTHER, (WITHIN, slow)).step_time_s) > 1.5 * float(
        predicted(OTHER).step_time_s
    )


def test_what_other_trials_say_stays() -> None:
    one = given(OTHER, (WITHIN, 1.2))
    assert given(OTHER, (WITHIN, 1.2), (OVER, 1.2 * stalled(OVER))) == one
    assert given(OTHER, (OVER, 1.2 * stalled(OVER)), (WITHIN, 1.2)) == one


@pytest.mark.parametrize("times", [0.8, 1.0, 1.3])
def test_a_trial_as_fast_as_its_kind_is_counted(times: float) -> None:
    found = given(OTHER, (OVER, times))
    assert (float(found.step_time_s) - float(predicted(OTHER).step_time_s)) * (times - 1.0) >= 0.0
    assert float(found.step_time_high_s) < float(predicted(OTHER).step_time_high_s) * max(
        times, 1.0
    )


def test_trials_that_agree_are_believed() -> None:
    found = given(OTHER, (OVER, 2.0), (ALSO_OVER, 2.0), (WITHIN, 2.0))
    assert float(found.step_time_s) == pytest.approx(
        2.0 * float(predicted(OTHER).step_time_s), rel=0.15
    )
