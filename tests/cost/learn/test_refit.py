"""The constants given trials: what is recovered, what stays uncertain, and what one bad trial
does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.estimator import sensitivity
from autotune.cost.learn.refit import Measured, UncertainConstants, refit, uncertain
from autotune.spec import ConfigTable, Workload
from tests.cost.examples import workload

SHIPPED = Calibration(time_sigma=0.05, comm_sigma=0.0)
TABLE = ConfigTable(
    {
        "dp": np.array([8, 8, 4, 4, 2, 16, 32, 8]),
        "tp": np.array([1, 4, 2, 8, 4, 1, 1, 2]),
        "micro_batch_size": np.array([1, 2, 4, 8, 1, 2, 8, 1]),
        "accumulation_steps": np.array([32, 16, 16, 8, 128, 8, 1, 32]),
    }
)


def measured(
    truth: Calibration, level: float = 1.0, rows: slice = slice(None), at: Workload | None = None
) -> Measured:
    """Trials on a cluster whose constants are `truth`."""
    where, table = at or workload(), TABLE.take(rows)
    return Measured(
        workload=where,
        table=table,
        step_time_s=level * np.asarray(estimate(where, table, calibration=truth).step_time_s),
    )


def sigma(known: UncertainConstants, name: str) -> float:
    """How uncertain a constant is, as a standard deviation of its log."""
    return float(np.sqrt(known.covariance[known.names.index(name), known.names.index(name)]))


def test_derivatives_are_those_of_the_estimate() -> None:
    names = ("matmul_efficiency", "layer_host_s", "intra_efficiency")
    found = sensitivity(workload(), TABLE, SHIPPED, names)
    for k, name in enumerate(names):
        ends = [
            np.log(
                estimate(
                    workload(),
                    TABLE,
                    calibration=replace(SHIPPED, **{name: getattr(SHIPPED, name) * np.exp(h)}),
                ).step_time_s
            )
            for h in (-1e-4, 1e-4)
        ]
        assert found.jacobian[:, k] == pytest.approx((ends[1] - ends[0]) / 2e-4, abs=0.02)
    assert (found.jacobian[:, -1] == 1.0).all()


def test_without_trials_the_constants_are_those_that_ship() -> None:
    prior = uncertain(SHIPPED)
    assert refit(prior, []) is prior


def test_wrong_constants_are_corrected_towards_those_of_the_cluster_and_known_better() -> None:
    prior = uncertain(SHIPPED)
    truth = replace(
        SHIPPED,
        matmul_efficiency=0.8 * SHIPPED.matmul_efficiency,
        layer_host_s=2 * SHIPPED.layer_host_s,
    )
    known = refit(prior, [measured(truth)])
    again = np.log(
        measured(truth).step_time_s
        / np.asarray(estimate(workload(), TABLE, calibration=known.constants).step_time_s)
    )
    before = np.log(
        measured(truth).step_time_s
        / np.asarray(estimate(workload(), TABLE, calibration=SHIPPED).step_time_s)
    )
    assert np.abs(again - known.log_level).max() < 0.25 * np.abs(before).max()
    assert known.constants.matmul_efficiency < SHIPPED.matmul_efficiency
    assert known.constants.layer_host_s > SHIPPED.layer_host_s
    assert sigma(known, "matmul_efficiency") < sigma(prior, "matmul_efficiency")


def test_constants_that_no_trial_depends_on_keep_their_width() -> None:
    prior = uncertain(SHIPPED)
    known = refit(prior, [measured(replace(SHIPPED, matmul_efficiency=0.6))])
    assert known.constants.expert_host_s == pytest.approx(SHIPPED.expert_host_s)
    assert sigma(known, "expert_host_s") == pytest.approx(sigma(prior, "expert_host_s"))


def test_trials_of_several_workloads_tell_more_than_those_of_one() -> None:
    prior, truth = uncertain(SHIPPED), replace(SHIPPED, matmul_efficiency=0.6)
    one = measured(truth, rows=slice(0, 2))
    other = measured(truth, rows=slice(2, 6), at=workload(seq_len=4096))
    assert sigma(refit(prior, [one, other]), "matmul_efficiency") < sigma(
        refit(prior, [one]), "matmul_efficiency"
    )


def test_a_common_factor_is_the_level() -> None:
    known = refit(uncertain(SHIPPED), [measured(SHIPPED, level=1.2)])
    predicted = np.asarray(
        estimate(workload(), TABLE, calibration=known.constants).step_time_s
    ) * np.exp(known.log_level)
    assert predicted == pytest.approx(measured(SHIPPED, level=1.2).step_time_s, rel=0.03)


def test_a_slow_node_in_one_trial_does_not_move_the_constants() -> None:
    prior, clean = uncertain(SHIPPED), measured(SHIPPED)
    slow = replace(clean, step_time_s=clean.step_time_s * np.where(np.arange(8) == 3, 6.0, 1.0))
    known = refit(prior, [slow])
    predicted = np.asarray(
        estimate(workload(), TABLE, calibration=known.constants).step_time_s
    ) * np.exp(known.log_level)
    others = np.arange(8) != 3
    assert np.median(np.abs(np.log(predicted / clean.step_time_s))[others]) < 0.1


def test_constants_that_are_far_off_are_found_where_kernels_hide_behind_the_host() -> None:
    """Matrix products at a sixth of their speed and a host that is three times too fast: whether
    kernels or the host bound a step changes on the way."""
    truth = replace(SHIPPED, layer_host_s=4e-3)
    start = replace(
        truth,
        matmul_efficiency=truth.matmul_efficiency / 6.0,
        layer_host_s=truth.layer_host_s / 3.0,
    )
    start = replace(start, micro_batch_host_s=2e-3)
    prior = uncertain(start)
    known = refit(replace(prior, covariance=9.0 * prior.covariance), [measured(truth)])
    predicted = np.asarray(estimate(workload(), TABLE, calibration=known.constants).step_time_s)
    assert predicted * np.exp(known.log_level) == pytest.approx(
        measured(truth).step_time_s, rel=0.1
    )


def test_products_in_sixteen_bits_reach_their_speed_though_the_factor_for_them_is_far_too_low() -> (
    None
):
    """The fraction of the peak that they reach is efficiency times `half_factor`: at most one of
    both together, not of the efficiency alone."""
    start = replace(SHIPPED, half_factor=0.2)
    prior = uncertain(start)
    known = refit(replace(prior, covariance=9.0 * prior.covariance), [measured(SHIPPED)])
    predicted = np.asarray(estimate(workload(), TABLE, calibration=known.constants).step_time_s)
    assert predicted * np.exp(known.log_level) == pytest.approx(
        measured(SHIPPED).step_time_s, rel=0.1
    )
    assert 1.0 < known.constants.matmul_efficiency <= 5.0
    assert abs(known.log_level) < 0.5
