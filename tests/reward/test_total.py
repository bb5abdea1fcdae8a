from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.reward import DIVERGED_CEILING, reward, token_cost
from autotune.spec import Measurement, Objective, Reward
from tests.reward.samples import healthy, workload
from tests.study.controller.world import BASELINE

METRICS = ("throughput", "goodput", "cost")
LAW = settings(deadline=None, derandomize=True)


def worth(
    measurement: Measurement,
    *,
    weight: float = 0.2,
    metric: str = "throughput",
    baseline: Measurement | None = None,
) -> Reward:
    return reward(
        measurement,
        baseline=baseline or healthy(),
        objective=Objective(metric=metric, stability_weight=weight),
        workload=workload(),
        config=BASELINE,
    )


def faster(times: float, measurement: Measurement | None = None) -> Measurement:
    m = measurement or healthy()
    return replace(m, step_times_s=tuple(t / times for t in m.step_times_s))


@pytest.mark.parametrize("metric", METRICS)
def test_the_baseline_is_worth_the_weight_of_its_stability(metric: str) -> None:
    found = worth(healthy(), metric=metric)
    assert found.throughput == pytest.approx(0.0)
    assert found.total == pytest.approx(0.2 * found.stability)


def test_doubling_the_speed_is_worth_ln_2() -> None:
    assert worth(faster(2.0)).throughput == pytest.approx(math.log(2))
    assert worth(faster(2.0)).total == pytest.approx(0.8 * math.log(2) + 0.2)


def test_the_ranking_flips_when_the_weight_rises() -> None:
    risky, safe = faster(1.15, healthy(peak_memory_bytes=0.99 * 4e9)), healthy()
    assert worth(risky, weight=0.05).total > worth(safe, weight=0.05).total
    assert worth(risky, weight=0.5).total < worth(safe, weight=0.5).total


def test_the_parts_add_the_terms_that_were_used() -> None:
    assert worth(faster(2.0)).parts["tokens_per_s_ratio"] == pytest.approx(2.0)
    assert worth(healthy(), metric="cost").parts["cost_ratio"] == pytest.approx(1.0)
    assert worth(healthy(gradient_noise_scale=100.0), metric="goodput").parts["efficiency"] == 1.0


def test_half_the_ranks_at_the_same_speed_cost_half() -> None:
    assert worth(healthy(num_ranks=2), metric="cost").throughput == pytest.approx(math.log(2))
    assert worth(healthy(num_ranks=2)).throughput == pytest.approx(0.0)


def test_a_measured_power_enters_only_when_both_have_it() -> None:
    hot = healthy(utilization={"power_watts": 200.0})
    cool = healthy(utilization={"power_watts": 100.0})
    assert worth(cool, metric="cost", baseline=hot).throughput == pytest.approx(math.log(2))
    assert worth(cool, metric="cost").throughput == pytest.approx(0.0)
    gpu = replace(workload().cluster.gpu, power_watts=400.0)
    rated = replace(workload(), cluster=replace(workload().cluster, gpu=gpu))
    objective = Objective(metric="cost", stability_weight=0.0)
    found = reward(cool, baseline=healthy(), objective=objective, workload=rated, config=BASELINE)
    assert found.throughput == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("gpu", "readings", "value", "unit"),
    [
        (
            {"usd_per_hour": 3.6, "power_watts": 400.0},
            {"power_watts": 200.0},
            4 / 2560 * 1e-3,
            "USD",
        ),
        ({"power_watts": 400.0}, {"power_watts": 200.0}, 4 / 2560 * 200, "J"),
        ({"power_watts": 400.0}, {}, 4 / 2560 * 400, "J"),
        ({}, {}, 4 / 2560, "rank_s"),
    ],
)
def test_a_token_costs_money_where_prices_are_known_else_energy_else_time(
    gpu: dict[str, float], readings: dict[str, float], value: float, unit: str
) -> None:
    """Four ranks, 2560 tokens per second."""
    paid = token_cost(
        healthy(step_times_s=(0.1,) * 5, utilization=readings),
        replace(workload().cluster.gpu, **gpu),
    )
    assert paid.value == pytest.approx(value)
    assert paid.unit == unit


def test_without_a_baseline_a_trial_is_compared_with_itself() -> None:
    objective = Objective(stability_weight=0.0)
    found = reward(
        healthy(), baseline=None, objective=objective, workload=workload(), config=BASELINE
    )
    assert found.total == 0.0


def test_a_larger_batch_has_to_earn_its_keep() -> None:
    base = healthy(gradient_noise_scale=8.0)
    twice = faster(
        1.0,
        replace(base, tokens_per_step=512, step_times_s=tuple(1.6 * t for t in base.step_times_s)),
    )
    big = replace(BASELINE, accumulation_steps=4)
    by = {
        metric: reward(
            twice,
            baseline=base,
            objective=Objective(metric=metric, stability_weight=0.0),
            workload=workload(),
            config=big,
        )
        for metric in ("throughput", "goodput")
    }
    assert by["throughput"].total == pytest.approx(math.log(2 / 1.6))
    assert by["goodput"].parts["efficiency"] == pytest.approx((8 + 8) / (8 + 16))
    assert by["goodput"].total < 0.0


@LAW
@given(
    times=st.floats(1e-6, 1e6),
    weight=st.floats(0, 1),
    metric=st.sampled_from(METRICS),
    peak=st.floats(0, 8e9),
    skipped=st.integers(0, 30),
    loss=st.floats(1e-3, 1e6),
)
def test_a_reward_is_finite(
    times: float, weight: float, metric: str, peak: float, skipped: int, loss: float
) -> None:
    m = faster(times, healthy(peak_memory_bytes=peak, skipped_steps=skipped, losses=(loss,) * 20))
    found = worth(m, weight=weight, metric=metric)
    assert all(
        math.isfinite(v)
        for v in (found.total, found.throughput, found.stability, *found.parts.values())
    )


@LAW
@given(
    a=st.floats(0.01, 100),
    more=st.floats(1.001, 100),
    weight=st.floats(0, 0.99),
    metric=st.sampled_from(METRICS),
)
def test_more_throughput_is_worth_more(a: float, more: float, weight: float, metric: str) -> None:
    slow, fast = (worth(faster(x), weight=weight, metric=metric).total for x in (a, a * more))
    assert fast > slow


@LAW
@given(
    times=st.floats(1e-3, 1e12),
    weight=st.floats(0, 1),
    metric=st.sampled_from(METRICS),
    gone=st.floats(1e-3, 1e3),
)
def test_no_speed_lifts_a_diverged_trial_over_a_healthy_one(
    times: float, weight: float, metric: str, gone: float
) -> None:
    broken = worth(faster(times, healthy(nonfinite_steps=2)), weight=weight, metric=metric)
    assert broken.total <= DIVERGED_CEILING
    assert broken.stability == 0.0
    assert worth(faster(gone), weight=weight, metric=metric).total > broken.total


@LAW
@given(unit=st.floats(1e-6, 1e6), times=st.floats(0.01, 100), weight=st.floats(0, 1))
def test_units_cancel(unit: float, times: float, weight: float) -> None:
    def scaled(m: Measurement) -> Measurement:
        return replace(
            m,
            step_times_s=tuple(t * unit for t in m.step_times_s),
            peak_memory_bytes=(m.peak_memory_bytes or 0) * unit,
            memory_capacity_bytes=(m.memory_capacity_bytes or 0) * unit,
        )

    plain = worth(faster(times), weight=weight)
    other = worth(scaled(faster(times)), weight=weight, baseline=scaled(healthy()))
    assert other.total == pytest.approx(plain.total, rel=1e-6, abs=1e-9)


def test_a_measurement_without_steps_gets_the_ceiling() -> None:
    assert worth(Measurement(step_times_s=())).total == DIVERGED_CEILING
