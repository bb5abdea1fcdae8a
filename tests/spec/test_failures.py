"""How often to save, and what failures cost: the figures of the papers, a simulation, and what a
study makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune import load_study
from autotune.errors import SpecError
from autotune.reward.total import reward
from autotune.spec import Measurement, Objective, ParallelConfig, Study
from autotune.spec.failures import Failures

DAY = 86_400.0


def failures(**more: float) -> Failures:
    return Failures(**{"node_mtbf_s": 30 * DAY, "checkpoint_s": 60.0, "restart_s": 600.0, **more})  # type: ignore[arg-type]


def simulated(one: Failures, nodes: int, interval_s: float) -> float:
    """Share of the time that is left for training, by playing failures."""
    dice, done_s, clock_s = np.random.default_rng(0), 0.0, 0.0
    apart_s = one.node_mtbf_s / nodes
    next_s = dice.exponential(apart_s)
    for _ in range(20_000):
        end_s = clock_s + interval_s + one.saving_s
        if next_s >= end_s:
            done_s, clock_s = done_s + interval_s, end_s
            continue
        clock_s = next_s
        while (gap_s := dice.exponential(apart_s)) < one.restart_s:  # it fails while it restarts
            clock_s += gap_s
        clock_s, next_s = clock_s + one.restart_s, clock_s + gap_s
    return done_s / clock_s


@pytest.mark.parametrize("nodes", [16, 256, 2048])
def test_the_interval_is_optimal_and_its_loss_matches_a_simulation(nodes: int) -> None:
    one = failures()
    policy = one.policy(nodes)
    left = simulated(one, nodes, policy.interval_s)
    assert 1 - policy.lost_share == pytest.approx(left, abs=0.02)
    for factor in (0.3, 3.0):
        assert simulated(one, nodes, factor * policy.interval_s) < left + 0.005


def test_rare_failures_give_youngs_interval() -> None:
    policy = failures().policy(4)
    assert policy.interval_s == pytest.approx(math.sqrt(2 * 60 * 30 * DAY / 4), rel=0.02)
    assert policy.failures_per_day == pytest.approx(4 / 30)
    assert failures().policy(4, step_s=10.0).interval_steps == round(policy.interval_s / 10)


def test_the_saving_time_is_size_by_bandwidth() -> None:
    sized = Failures(
        node_mtbf_s=30 * DAY, restart_s=600.0, checkpoint_bytes=3e12, write_bytes_per_s=5e10
    )
    assert sized.saving_s == 60.0
    with pytest.raises(SpecError, match="the time that a checkpoint takes is missing"):
        Failures(node_mtbf_s=DAY, restart_s=1.0, checkpoint_bytes=1e9)


def test_replica_groups_lose_less() -> None:
    alone, grouped = failures().policy(512), failures(replicas=4).policy(512)
    assert grouped.lost_share < alone.lost_share / 2
    assert grouped.interval_s > 10 * alone.interval_s


def test_replica_groups_save_at_least_once_a_day() -> None:
    """All four fail together once in decades, if they fail independently; a power cut does not
    ask."""
    policy = failures(replicas=4, node_mtbf_s=365 * DAY).policy(4, step_s=2.0)
    assert (policy.interval_s, policy.interval_steps) == (DAY, 43_200)
    assert policy.lost_share == pytest.approx(60.0 / DAY + 600.0 / (4 * 365 * DAY / 4), rel=0.05)
    assert policy.text.startswith("checkpoints: once a day (43,200 steps) is enough")
    assert failures(node_mtbf_s=365 * DAY).policy(1).interval_s < DAY


def test_a_job_that_fails_faster_than_it_saves_loses_all_time() -> None:
    assert failures(checkpoint_s=7200.0).policy(1_000_000).lost_share == pytest.approx(
        1.0, abs=1e-6
    )


def spec(**more: object) -> dict[str, object]:
    return {
        "model": "llama-8b",
        "cluster": "h100-sxm-64x8",
        "workload": {"seq_len": 4096, "global_batch_size": 1024},
        "space": {"tp": [1, 2], "world_sizes": [256, 512]},
        "failures": {"node_mtbf_s": "10 d", "checkpoint_s": "90 s", "restart_s": "10 min"},
        **more,
    }


def test_a_spec_with_failures_is_parsed_and_stored() -> None:
    study = load_study(spec(objective={"metric": "goodput"}))
    kept = study.objective.failures
    assert kept is not None
    assert (kept.node_mtbf_s, kept.checkpoint_s, kept.restart_s) == (10 * DAY, 90.0, 600.0)
    assert Study.from_dict(study.to_dict()).objective.failures == kept
    assert study.objective.training_share(512, 8) < study.objective.training_share(256, 8) < 1.0
    assert replace(study.objective, metric="throughput").training_share(512, 8) == 1.0
    assert Objective(metric="goodput").training_share(512, 8) == 1.0


def test_goodput_includes_time_lost_to_failures() -> None:
    study = load_study(
        spec(
            objective={"metric": "goodput", "stability_weight": 0.0},
            failures={"node_mtbf_s": "8 h", "checkpoint_s": "5 min", "restart_s": "20 min"},
        )
    )
    small = ParallelConfig(dp=256, micro_batch_size=1, accumulation_steps=4)
    large = ParallelConfig(dp=512, micro_batch_size=1, accumulation_steps=2)

    def seen(step_s: float, ranks: int) -> Measurement:
        return Measurement(
            step_times_s=(step_s,) * 8,
            tokens_per_step=1024 * 4096,
            num_ranks=ranks,
            losses=(1.0,) * 8,
        )

    baseline = seen(2.0, 256)
    worth = {
        metric: reward(
            seen(1.4, 512),
            baseline=baseline,
            objective=replace(study.objective, metric=metric),
            workload=study.workload,
            config=large,
        ).throughput
        for metric in ("throughput", "goodput")
    }
    assert worth["throughput"] > 0 > worth["goodput"]
    same = reward(
        baseline,
        baseline=baseline,
        objective=study.objective,
        workload=study.workload,
        config=small,
    )
    assert same.throughput == pytest.approx(0.0)
