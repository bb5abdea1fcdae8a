"""Trains the policy of `reinforce` on simulated clusters, and writes autotune/search/policy.json.

    python -m research.train_policy [--worlds 1500] [--seed 0]

A world is a catalog model on a random cluster, with at most `CANDIDATES` configs of a random space.
The policy sees the cost model's estimate. The outcomes follow the same model with all constants
perturbed (log-normal), plus noise, errors of the memory estimate, and faults. None of the published
measurements is used.

REINFORCE with the mean return of the other rollouts in the same world as baseline (Kool et al.
2019); the return of an action is minus the regret summed over the trials that follow.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.cost import calibration_for, estimate
from autotune.errors import AutotuneError
from autotune.search.dominance import needs_as_much_memory
from autotune.search.policy import FEATURES, FILE, Policy, SearchState
from autotune.search.surrogate.training_data import log_limits
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, SpaceSpec, Workload
from autotune.spec.catalog import model
from tests.benchmarks.perturbation import perturbed

MODELS = (
    "gpt2-small",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "llama-1b",
    "llama-3b",
    "llama-8b",
    "llama-70b",
    "llama-405b",
    "mixtral-8x7b",
)
GPUS = ("a100-40gb", "a100-80gb", "b200-sxm", "h100-sxm", "h200-sxm", "l40s", "v100-32gb")
"""what worlds are drawn from: a fixed list, so that a new entry of the catalog changes no world"""
CANDIDATES, TRIALS, ROLLOUTS, HIDDEN = 150, 6, 6, 12
WORST = 1.0
"""regret (log) before the first measurement, and the largest that counts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A space with the predictions and the outcome of each config."""

    space: SearchSpace
    state: SearchState
    """before any trial, from the predictions"""
    score: np.ndarray
    """true log throughput, shape (N,)"""
    log_peak_ratio: np.ndarray
    """log of the true peak over the memory, shape (N,)"""
    out_of_memory: np.ndarray
    """configs that run out of memory, shape (N,)"""
    faulty: np.ndarray
    """configs that fail for other reasons, shape (N,)"""

    @property
    def runs(self) -> np.ndarray:
        """Which configs run."""
        return ~self.out_of_memory & ~self.faulty


def draw(seed: int) -> World:
    """A world in which at least five configs run."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            world = _draw(rng)
        except AutotuneError:
            continue
        if world.runs.sum() >= 5:
            return world


def _draw(rng: np.random.Generator) -> World:
    gpu = str(rng.choice(GPUS))
    workload = Workload(
        model=model(str(rng.choice(MODELS))),
        cluster=ClusterSpec.of(gpu, num_nodes=int(2 ** rng.integers(0, 5)), gpus_per_node=8),
        seq_len=int(2 ** rng.integers(10, 14)),
        global_batch_size=int(2 ** rng.integers(5, 11)),
        trainer=str(rng.choice(["megatron", "native", "nanotron", "torchtitan"])),
    )
    knobs = {
        "tp": (1, 2, 4, 8),
        "pp": (1, 2, 4, 8),
        "micro_batch_size": (1, 2, 4, 8, 16),
        "zero_stage": tuple(range(int(rng.integers(1, 5)))),
        "recompute": ("none", "selective", "full")[: int(rng.integers(1, 4))],
    }
    full = SearchSpace.build(workload, SpaceSpec(knobs=knobs))
    kept = np.sort(rng.permutation(len(full))[:CANDIDATES])
    space = SearchSpace.of(workload, full.table.take(kept))
    constants = replace(calibration_for(workload), time_sigma=0.2, memory_sigma=0.15)
    predicted = estimate(workload, space.table, calibration=constants)
    real = estimate(
        workload, space.table, calibration=perturbed(constants, rng, float(rng.uniform(0.1, 0.6)))
    )
    noise = rng.standard_normal((2, len(space))) * np.array([[rng.uniform(0.01, 0.1)], [0.05]])
    peak = np.asarray(real.peak_memory_bytes) * np.exp(noise[1] + 0.1 * rng.standard_normal())
    capacity = workload.cluster.gpu.memory_bytes
    return World(
        space=space,
        state=SearchState.of(
            predicted, np.log(np.asarray(predicted.tokens_per_s)), space.coordinates(), capacity
        ),
        score=np.log(np.asarray(real.tokens_per_s)) + noise[0],
        log_peak_ratio=np.log(peak / capacity),
        out_of_memory=np.log(peak) > log_limits(predicted, capacity),
        faulty=rng.random(len(space)) < rng.choice([0.0, 0.03]),
    )


def rollout(
    world: World, policy: Policy, rng: np.random.Generator | None
) -> tuple[list, np.ndarray]:
    """Actions (features, allowed, chosen) and the regret after each; samples with `rng`, else takes
    the most probable."""
    state = replace(world.state, tried=[], scores=[], memory_errors=[], out_of_memory=[])
    allowed = np.ones(len(world.space), dtype=bool)
    best, top = -np.inf, world.score[world.runs].max()
    actions, regrets = [], []
    for _ in range(TRIALS):
        if not allowed.any():
            regrets.append(regrets[-1])
            continue
        features = state.features()
        logs = policy.log_probabilities(features, allowed)
        noisy = logs if rng is None else logs + rng.gumbel(size=len(logs))
        chosen = int(np.argmax(noisy))
        actions.append((features, allowed.copy(), chosen))
        ran_out = bool(world.out_of_memory[chosen])
        runs = bool(world.runs[chosen])
        state.add(
            chosen,
            float(world.score[chosen]) if runs else np.nan,
            log_peak_ratio=float(world.log_peak_ratio[chosen]) if runs else None,
            out_of_memory=ran_out,
        )
        allowed[chosen] = False
        if ran_out:
            allowed &= ~needs_as_much_memory(world.space.table, world.space[chosen])
        best = max(best, world.score[chosen]) if runs else best
        regrets.append(min(top - best, WORST))
    return actions, np.array(regrets)


def gradient(world: World, policy: Policy, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """Policy gradient of the expected return in one world, and the mean regret."""
    rng = np.random.default_rng(seed)
    played = [rollout(world, policy, rng) for _ in range(ROLLOUTS)]
    returns = np.array([-np.cumsum(regrets[::-1])[::-1] for _, regrets in played])
    advantage = (returns - returns.mean(axis=0)) * ROLLOUTS / (ROLLOUTS - 1)
    total = {name: np.zeros_like(value) for name, value in policy.weights.items()}
    for (actions, _), advantages in zip(played, advantage, strict=True):
        for t, (features, allowed, chosen) in enumerate(actions):
            for name, value in policy.gradient(features, allowed, chosen).items():
                total[name] += advantages[t] * value / ROLLOUTS
    return total, float(np.mean([regrets.mean() for _, regrets in played]))


def train(
    worlds: Sequence[World], policy: Policy, *, epochs: int, batch: int = 25, step: float = 0.02
) -> Policy:
    """Adam (Kingma & Ba 2015) on the policy gradient."""
    first = {n: np.zeros_like(v) for n, v in policy.weights.items()}
    second = {n: np.zeros_like(v) for n, v in policy.weights.items()}
    count = 0
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(worlds))
        for start in range(0, len(worlds), batch):
            some = [
                gradient(worlds[i], policy, seed=1_000_003 * epoch + int(i))
                for i in order[start : start + batch]
            ]
            count += 1
            direction = {}
            for n in policy.weights:
                mean = sum(g[n] for g, _ in some) / len(some)
                first[n] = 0.9 * first[n] + 0.1 * mean
                second[n] = 0.99 * second[n] + 0.01 * mean**2
                direction[n] = (
                    first[n] / (1 - 0.9**count) / (np.sqrt(second[n] / (1 - 0.99**count)) + 1e-6)
                )
            policy = policy.moved(
                direction, step * (1 - start / len(worlds) * (epoch + 1) / epochs / 2)
            )
            if count % 10 == 0:
                print(
                    f"epoch {epoch}, batch {count}: mean regret {np.mean([r for _, r in some]):.4f}",
                    flush=True,
                )
    return policy


def greedy_regret(worlds: Sequence[World], policy: Policy) -> float:
    """Mean regret over the trials when the most probable action is taken."""
    return float(np.mean([rollout(world, policy, None)[1].mean() for world in worlds]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Draws worlds, trains, compares on worlds that were not trained on, writes the weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    worlds = [draw(seed) for seed in range(args.seed, args.seed + args.worlds + 150)]
    held_out, worlds = worlds[:150], worlds[150:]
    before = Policy.initial(HIDDEN, np.random.default_rng(args.seed))
    after = train(worlds, before, epochs=args.epochs)
    results = {
        "untrained": greedy_regret(held_out, before),
        "trained": greedy_regret(held_out, after),
    }
    print(f"mean log regret over the first {TRIALS} trials in 150 other worlds: {results}")
    made_by = f"python -m research.train_policy --worlds {args.worlds} --epochs {args.epochs} --seed {args.seed}"
    document = {
        "made_by": made_by,
        "features": FEATURES,
        "regret": results,
        "weights": after.to_dict(),
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
