"""How well the reward ranks synthetic runs, against an expert's order of them
(`tests/reward/expert_ranking.toml`).

    python -m tests.benchmarks.rewards

For 5, 10 and 30 steps, over 20 seeds: pairs of runs of different tiers that the reward has in the
wrong order; stationary losses with 20% noise, without a reference, that count as diverged, where
steps are independent and where neighbours correlate by 0.9 (batches in the order of their sources).
"""

from __future__ import annotations

import numpy as np

from autotune.reward import diverged, reward
from autotune.spec import Measurement, Objective
from tests.reward.samples import workload
from tests.reward.synthetic_runs import BASELINE, expert_ranking
from tests.study.controller.world import BASELINE as CONFIG

SEEDS, STATIONARY = 20, 2000


def misranked(steps: int) -> tuple[int, int]:
    """Pairs in the wrong order, and all pairs."""
    runs, wrong, pairs = expert_ranking(), 0, 0
    for seed in range(SEEDS):
        baseline = next(run for run in runs if run.name == BASELINE).measured(steps, seed)
        totals = [
            reward(
                run.measured(steps, seed),
                baseline=baseline,
                objective=Objective(),
                workload=workload(),
                config=CONFIG,
            ).total
            for run in runs
        ]
        for a, worth in zip(runs, totals, strict=True):
            later = [t for b, t in zip(runs, totals, strict=True) if a.tier < b.tier]
            pairs += len(later)
            wrong += sum(not worth > t for t in later)
    return wrong, pairs


def falsely_diverged(steps: int, alike: float) -> float:
    """Share of stationary losses that count as diverged; `alike`: correlation of neighbouring
    steps."""
    rng = np.random.default_rng(0)
    deviations = rng.normal(size=(STATIONARY, steps))
    for i in range(1, steps):
        deviations[:, i] = alike * deviations[:, i - 1] + (1 - alike**2) ** 0.5 * deviations[:, i]
    losses = 4 * np.maximum(1 + 0.2 * deviations, 0.01)
    runs = (
        Measurement(step_times_s=(0.1,) * steps, losses=tuple(row), tokens_per_step=4096)
        for row in losses
    )
    return sum(diverged(run) is not None for run in runs) / STATIONARY


def main() -> None:
    """Prints the table."""
    print(f"{len(expert_ranking())} runs\n")
    print(
        "| steps | pairs in the wrong order | stationary losses that count as diverged | the same, neighbours alike |"
    )
    print("|---|---|---|---|")
    for steps in (5, 10, 30):
        wrong, pairs = misranked(steps)
        alone, alike = (falsely_diverged(steps, rho) for rho in (0.0, 0.9))
        print(
            f"| {steps} | {wrong} of {pairs} ({wrong / pairs:.1%}) | {alone:.2%} | {alike:.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
