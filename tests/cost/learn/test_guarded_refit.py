"""Constants follow trials as far as that predicts left-out trials better, and no further."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.learn.correction import guarded_refit, measured_workloads
from autotune.cost.learn.refit import Measured
from autotune.spec import Measurement, ParallelConfig, Trial, TrialStatus, Workload
from tests.cost.examples import workload
from tests.cost.learn.test_refit import SHIPPED, TABLE, measured

WRONG = replace(SHIPPED, matmul_efficiency=0.36, layer_host_s=6e-3, intra_efficiency=1.0)
"""a cluster where constants are off by a factor of two and four, in either direction"""


def error_elsewhere(constants: Calibration, truth: Calibration) -> float:
    """Largest error of configs of another workload on the same cluster."""
    there: Workload = workload(seq_len=4096, batch=512)
    predicted, measured_s = (
        np.asarray(estimate(there, TABLE, calibration=c).step_time_s) for c in (constants, truth)
    )
    return float(np.abs(np.log(measured_s / predicted)).max())


def test_without_trials_nothing_moves() -> None:
    found = guarded_refit(SHIPPED, [])
    assert (found.kind, found.calibration) == ("known", SHIPPED)


def test_trials_that_agree_move_nothing() -> None:
    found = guarded_refit(SHIPPED, [measured(SHIPPED)])
    assert found.kind == "known"
    assert found.calibration == SHIPPED


def test_constants_that_are_wrong_by_a_factor_are_refitted_and_predict_another_workload() -> None:
    found = guarded_refit(SHIPPED, [measured(WRONG)])
    assert found.kind in ("refit", "wrong")
    assert found.gain > 0
    assert error_elsewhere(found.calibration, WRONG) < 0.25 * error_elsewhere(SHIPPED, WRONG)


@pytest.mark.thorough
def test_what_costs_every_step_the_same_does_not_grow_twentyfold_to_explain_trials_of_one_batch() -> (
    None
):
    """Such a time fits configs of one batch that take equally long, and would not fall with more
    GPUs."""
    clean = measured(replace(SHIPPED, matmul_efficiency=0.3))
    found = guarded_refit(
        SHIPPED, [replace(clean, step_time_s=np.full(8, float(clean.step_time_s.mean())))]
    )
    for posterior in found.posteriors:
        for name in ("straggler", "step_host_s"):
            assert getattr(posterior.known.constants, name) < 5.0 * getattr(SHIPPED, name), (
                posterior.kind,
                name,
            )


def test_a_common_factor_is_a_level() -> None:
    found = guarded_refit(SHIPPED, [measured(SHIPPED, level=3.0)])
    assert abs(math.log(found.calibration.level / 3.0)) < 0.35 or found.kind in ("refit", "wrong")
    assert error_elsewhere(found.calibration, replace(SHIPPED, level=3.0)) < 0.3


def test_a_single_wild_trial_does_not_decide() -> None:
    clean = measured(SHIPPED)
    slow = replace(clean, step_time_s=clean.step_time_s * np.where(np.arange(8) == 3, 6.0, 1.0))
    assert error_elsewhere(guarded_refit(SHIPPED, [slow]).calibration, SHIPPED) < 0.15


def test_repeats_of_a_config_are_its_median_and_failures_are_left_out() -> None:
    config, where = ParallelConfig(dp=2), workload()
    done = [
        Trial(
            config=config,
            number=i,
            status=TrialStatus.COMPLETED,
            measurement=Measurement(step_times_s=(step_s,), tokens_per_step=4096, num_ranks=2),
        )
        for i, step_s in enumerate((1.0, 1.2, 5.0))
    ]
    failed = Trial(config=ParallelConfig(dp=4), number=3, status=TrialStatus.FAILED)
    (one,) = measured_workloads([(where, trial) for trial in [*done, failed]])
    assert isinstance(one, Measured)
    assert one.table[0] == config
    assert one.step_time_s.tolist() == [1.2]
