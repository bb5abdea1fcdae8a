from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.reward import explain, pareto, rerank
from autotune.spec import (
    Failure,
    FailureKind,
    Measurement,
    Objective,
    ParallelConfig,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from tests.report.worlds import estimate
from tests.reward.samples import healthy, workload
from tests.shortcuts import present
from tests.study.controller.world import BASELINE, CONFIGS


def trial(
    number: int,
    measurement: Measurement | None,
    config: ParallelConfig = BASELINE,
    **fields: object,
) -> Trial:
    status = TrialStatus.COMPLETED if measurement else TrialStatus.FAILED
    return replace(
        Trial(config=config, number=number, status=status, measurement=measurement), **fields
    )


def at(speed: float, **fields: object) -> Measurement:
    m = healthy(**fields)
    return replace(m, step_times_s=tuple(t / speed for t in m.step_times_s))


GPU = workload().cluster.gpu
TRIALS = [
    trial(0, at(1.0), purpose=TrialPurpose.BASELINE),
    trial(1, at(1.5, peak_memory_bytes=3.96e9), CONFIGS[1]),
    trial(2, at(1.3), CONFIGS[2]),
    trial(3, at(0.9, num_ranks=1), CONFIGS[3]),
    trial(4, at(0.8), CONFIGS[4]),
    trial(
        5,
        None,
        CONFIGS[5],
        failure=Failure(kind=FailureKind.OUT_OF_MEMORY, message="too big", rank=2, step=0),
    ),
    trial(6, at(1.31), CONFIGS[2], purpose=TrialPurpose.FINAL),
]


def order(metric: str, weight: float) -> list[int]:
    objective = Objective(metric=metric, stability_weight=weight)
    ranked = rerank(
        TRIALS[:6], objective=objective, workload=workload(), baseline=TRIALS[0].measurement
    )
    return [t.number for t in ranked]


def test_other_objectives_rank_otherwise() -> None:
    assert order("throughput", 0.0) == [1, 2, 0, 3, 4]
    assert order("throughput", 0.5)[0] == 2
    assert order("cost", 0.0)[0] == 3


@pytest.mark.parametrize(
    ("trials", "front"),
    [
        pytest.param(TRIALS, [1, 2, 3], id="what nothing beats in everything"),
        pytest.param([TRIALS[2], replace(TRIALS[1], number=7)], [7, 2], id="sorted by speed"),
        pytest.param(
            [TRIALS[2], replace(TRIALS[2], number=9)], [2, 9], id="equals stand side by side"
        ),
    ],
)
def test_the_front_holds_what_nothing_beats_sorted_by_speed(
    trials: list[Trial], front: list[int]
) -> None:
    assert [t.number for t in pareto(trials, GPU)] == front


def test_a_slower_config_that_draws_less_power_stands_on_the_front() -> None:
    """Unless a price makes every rank-second cost the same, or the power of some was not
    measured."""
    hot, cool = ({"power_watts": watts} for watts in (400.0, 200.0))
    pair = [trial(0, at(1.0, utilization=hot)), trial(1, at(0.8, utilization=cool), CONFIGS[1])]
    assert [t.number for t in pareto(pair, GPU)] == [0, 1]
    assert [t.number for t in pareto(pair, replace(GPU, usd_per_hour=2.0))] == [0]
    assert [t.number for t in pareto([pair[1], trial(0, at(1.0))], GPU)] == [0]


def explained(number: int, **options: object) -> tuple[str, ...]:
    found = explain(
        TRIALS[number],
        baseline=TRIALS[0],
        other=TRIALS[2],
        objective=Objective(),
        workload=workload(),
        **options,
    )
    assert found.to_dict()["trial"]["number"] == number
    return found.text


def test_a_winner_is_explained_against_baseline_and_runner_up() -> None:
    found = explain(
        TRIALS[1], baseline=TRIALS[0], other=TRIALS[2], objective=Objective(), workload=workload()
    )
    assert found.against["baseline"]["speed_ratio"] == pytest.approx(1.5)
    assert set(found.against["baseline"]["config_changes"]) >= {"dp"}
    assert found.against["runner-up"]["number"] == 2
    text = " ".join(found.text)
    assert "1.50 times as fast as the baseline" in text
    assert "peak memory is" in text
    shares = found.shares["throughput"] + found.shares["stability"]
    objective = Objective()
    (ranked,) = rerank(
        [TRIALS[1]], objective=objective, workload=workload(), baseline=TRIALS[0].measurement
    )
    assert abs(shares - present(ranked.reward).total) < 1e-12


def test_profiles_say_which_parts_of_the_step_shrank() -> None:
    text = " ".join(
        explained(
            1,
            profiles={0: {"compute": 0.08, "tp_comm": 0.0}, 1: {"compute": 0.05, "tp_comm": 0.01}},
        )
    )
    assert "(profiled): compute from 80 ms to 50 ms" in text
    assert (
        "parts of the step that are longer (profiled): tp comm from less than 800 us to 10 ms"
        in text
    )


def test_what_is_under_a_hundredth_of_the_step_is_not_given_a_number() -> None:
    before = {"compute": 1.34, "dp_comm": 0.05, "optimizer": 0.004}
    text = " ".join(
        explained(
            1, profiles={0: before, 1: {"compute": 0.466, "dp_comm": 1e-17, "optimizer": 0.001}}
        )
    )
    assert "compute from 1.34 s to 466 ms, dp comm from 50 ms to less than 13.9 ms" in text
    assert "optimizer" not in text


def test_a_failure_is_explained_by_its_evidence() -> None:
    text = explained(5)
    assert "out of memory: too big (rank 2, step 0)" in text


def test_steps_of_unlike_batches_are_compared_at_equal_tokens() -> None:
    bigger = trial(7, at(1.0, tokens_per_step=512), CONFIGS[1])
    profiles = {0: {"compute": 0.1, "optimizer": 0.1}, 7: {"compute": 0.2, "optimizer": 0.1}}
    found = explain(
        bigger,
        baseline=TRIALS[0],
        other=None,
        objective=Objective(),
        workload=workload(),
        profiles=profiles,
    )
    (line,) = (line for line in found.text if "are shorter" in line)
    assert line.endswith(
        "(profiled, at the same number of tokens): optimizer from 200 ms to 100 ms"
    )


def test_a_goodput_is_explained_by_the_noise_scale() -> None:
    base = trial(0, at(1.0, gradient_noise_scale=8.0), purpose=TrialPurpose.BASELINE)
    bigger = trial(7, at(1.0, tokens_per_step=512), replace(BASELINE, accumulation_steps=4))
    objective = Objective(metric="goodput")
    text = " ".join(
        explain(bigger, baseline=base, other=None, objective=objective, workload=workload()).text
    )
    assert (
        "each token is worth 0.67 times as much as one of the baseline's: the gradient noise scale is 8 sequences"
        in text
    )


def test_the_noise_scale_of_any_trial_is_that_of_the_study() -> None:
    base = trial(0, at(1.0), purpose=TrialPurpose.BASELINE)
    bigger = trial(7, at(1.0, tokens_per_step=512), replace(BASELINE, accumulation_steps=4))
    other = trial(
        3, at(1.0, gradient_noise_scale=8.0, gradient_noise_interval=(5.0, 12.0)), CONFIGS[1]
    )
    objective = Objective(metric="goodput")
    for others, words in (
        ((), "the gradient noise scale is unknown"),
        ((other,), "8 sequences (90% interval: 5 to 12)"),
    ):
        known = (base, bigger, *others)
        found = explain(
            bigger,
            baseline=base,
            other=None,
            objective=objective,
            workload=workload(),
            trials=known,
        )
        assert words in " ".join(found.text)
        ranked = rerank(known, objective=objective, workload=workload(), baseline=base.measurement)
        (again,) = (t for t in ranked if t.number == 7)
        assert present(again.reward).parts["efficiency"] == pytest.approx(
            16 / 24 if others else 0.5
        )


def test_another_batch_comes_with_its_learning_rate() -> None:
    bigger = trial(7, at(1.0, tokens_per_step=1024), CONFIGS[1])
    found = explain(
        bigger, baseline=TRIALS[0], other=None, objective=Objective(), workload=workload()
    )
    assert any(
        "multiply the learning rate by 2 (by the square root for workload.optimizer=adamw)" in line
        for line in found.text
    )


def test_without_a_baseline_all_is_relative_to_the_first_that_was_measured() -> None:
    trials = TRIALS[1:4]
    ranked = rerank(trials, objective=Objective(), workload=workload(), baseline=None)
    assert [t.number for t in ranked] == [2, 1, 3]
    totals = {t.number: t.reward.total for t in ranked if t.reward is not None}
    found = explain(
        TRIALS[2],
        baseline=None,
        other=TRIALS[3],
        objective=Objective(),
        workload=workload(),
        trials=trials,
    )
    assert present(found.reward).total == pytest.approx(totals[2])
    assert found.against["runner-up"]["total_difference"] == pytest.approx(totals[2] - totals[3])
    assert "ln of the ratio to trial 1's" in " ".join(found.text)


def test_a_proxy_is_explained_by_its_prediction_and_not_by_other_jobs() -> None:
    proxy = replace(TRIALS[1], purpose=TrialPurpose.PROXY, estimate=estimate(0.5))
    found = explain(
        proxy,
        baseline=None,
        other=TRIALS[2],
        objective=Objective(),
        workload=workload(),
        trials=TRIALS,
    )
    text = " ".join(found.text)
    ratio = present(proxy.measurement).tokens_per_s / float(proxy.estimate.tokens_per_s)  # type: ignore[union-attr]
    assert f"{ratio:.2f} times the" in text
    assert "trial 0" not in text
    assert (found.reward, found.against) == (None, {})
