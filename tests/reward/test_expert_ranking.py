"""The reward ranks synthetic runs as an expert would (`expert_ranking.toml`)."""

from __future__ import annotations

from collections import Counter

import pytest

from autotune.reward import diverged, reward, stability_parts
from autotune.spec import Objective
from tests.reward.samples import workload
from tests.reward.synthetic_runs import BASELINE, SyntheticRun, expert_ranking
from tests.study.controller.world import BASELINE as CONFIG

SEEDS = range(3)
NEVER = 14
"""tier of the runs that do not train"""


def totals(steps: int, seed: int) -> dict[str, float]:
    """Reward of every run, by name."""
    runs = expert_ranking()
    baseline = next(run for run in runs if run.name == BASELINE).measured(steps, seed)
    return {
        run.name: reward(
            run.measured(steps, seed),
            baseline=baseline,
            objective=Objective(),
            workload=workload(),
            config=CONFIG,
        ).total
        for run in runs
    }


def test_the_table_covers_every_kind_of_run() -> None:
    runs = expert_ranking()
    kinds = Counter(run.kind for run in runs)
    assert len({run.name for run in runs}) == len(runs) >= 40
    assert set(kinds) == {
        "healthy",
        "spiking",
        "skipping",
        "slow-tailed",
        "lucky",
        "short",
        "drifting",
        "diverging",
    }
    assert all(run.reason for run in runs)


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [5, 10, 30])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_reward_ranks_all_runs_as_the_expert_does(steps: int, seed: int) -> None:
    worth = totals(steps, seed)
    runs = expert_ranking()
    wrong = [
        f"{better.name} ({worth[better.name]:.3f}) is not above {worse.name} ({worth[worse.name]:.3f})"
        for better in runs
        for worse in runs
        if better.tier < worse.tier and not worth[better.name] > worth[worse.name]
    ]
    assert not wrong


@pytest.mark.parametrize("steps", [5, 10, 30])
def test_only_runs_that_do_not_train_diverge(steps: int) -> None:
    for run in expert_ranking():
        assert (diverged(run.measured(steps)) is not None) == (run.tier == NEVER), run.name


@pytest.mark.parametrize("steps", [5, 10, 30])
def test_a_flat_loss_with_a_fifth_of_noise_rarely_counts_as_diverged(steps: int) -> None:
    """0.5% at most of stationary runs without a reference."""
    noisy = SyntheticRun(
        tier=0,
        name="noise",
        kind="healthy",
        reason="",
        speed=1.0,
        shared_noise=0.2,
        flat=True,
        reference=False,
    )
    broken = sum(diverged(noisy.measured(steps, seed)) is not None for seed in range(200))
    assert broken <= 1


def test_a_healthy_run_scores_the_same_at_any_length() -> None:
    runs = {run.name: run for run in expert_ranking()}
    for name in ("baseline", "noisy steps", "spike of the data", "bf16 about fp32"):
        parts = [stability_parts(runs[name].measured(steps)) for steps in (5, 10, 30)]
        assert all(value >= 0.95 for found in parts for value in found.values()), (name, parts)
