"""What foreign load of one to three times the study's own does to claims, in simulated time, with
the controller that decides for real studies.

    python -m tests.benchmarks.foreign_load [--studies 200] [--loads calm,noise,bursts,phases] [--worlds equal,spread]

A run takes 10 s of setting up and steps of about a second; its config's speed times exp(N(0,
between)), steps with 3% noise that is correlated by 0.5. Foreign work that is L times the study's
own makes a step 1 + L times slower, and uneven by 10%.

    calm     runs differ by 2%, nobody else is there          noise    runs differ by 5%
    bursts   2%; L is uniform from 1 to 3 in bursts of 10 s to 10 min (log-uniform), with pauses of the same lengths
    phases   2%; one to three whole phases with such an L, each from a random time to another

    equal    all configs as fast as the default one           spread   0.8 to 1.3 times as fast, in random order
    far      0.5 to 5 times as fast, in random order

    above 1.02   studies with a claim above 1.02              low above 1   with a claim whose interval lies above 1
    held         the claimed interval holds the true ratio of the winner to the baseline; a study that claims nothing holds
    held of claims   the same of the studies that claimed a speedup other than 1
    too noisy    studies that say so
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from autotune.spec import ParallelConfig, TrialPurpose
from tests.benchmarks import drift
from tests.study.controller.world import BASELINE, CONFIGS

LOADS = ("calm", "noise", "bursts", "phases")
WORLDS = ("equal", "spread", "far")
HORIZON_S = 40_000.0
"""simulated seconds of which the load is known; longer than any study here"""
UNEVEN = 0.1
BETWEEN = {"noise": 0.05}
"""standard deviation between runs; 2% elsewhere"""


def load_of(kind: str, rng: np.random.Generator) -> Callable[[float], float]:
    """Foreign load at a time of the study, as a multiple of its own."""
    spans: list[tuple[float, float, float]] = []
    if kind == "bursts":
        at_s = float(rng.uniform(0, 300))
        while at_s < HORIZON_S:
            lasts, pause = (
                float(math.exp(rng.uniform(math.log(10), math.log(600)))) for _ in range(2)
            )
            spans.append((at_s, at_s + lasts, float(rng.uniform(1, 3))))
            at_s += lasts + pause
    elif kind == "phases":
        for _ in range(int(rng.integers(1, 4))):
            begins = float(rng.uniform(0, 2 * drift.SEARCH_S))
            spans.append(
                (
                    begins,
                    begins + float(rng.uniform(0.3, 2)) * drift.SEARCH_S,
                    float(rng.uniform(1, 3)),
                )
            )
    return lambda at_s: sum(load for begins, ends, load in spans if begins <= at_s < ends)


class Machine(drift.Machine):
    """A runner on a machine that others use."""

    def __init__(self, kind: str, world: str, seed: int) -> None:
        super().__init__("quiet", seed)
        self.rng = np.random.default_rng([seed, LOADS.index(kind), WORLDS.index(world)])
        self.between = BETWEEN.get(kind, 0.02)
        if world == "equal":
            self.speed: dict[ParallelConfig, float] = dict.fromkeys((BASELINE, *CONFIGS), 1.0)
        elif world == "far":
            others = [c for c in CONFIGS if c != BASELINE]
            speeds = self.rng.permutation(np.geomspace(0.5, 5, len(others)))
            self.speed = {BASELINE: 1.0, **dict(zip(others, speeds.tolist(), strict=True))}
        load, uneven = load_of(kind, self.rng), np.random.default_rng([seed, 7])
        self.slowness = lambda at_s: (
            (1 + found) * math.exp(uneven.normal(0, UNEVEN)) if (found := load(at_s)) else 1.0
        )


def study(kind: str, world: str, seed: int) -> dict[str, float]:
    """What one simulated study came to, as numbers of which the sum over studies is counted."""
    machine = Machine(kind, world, seed)
    machine.run()
    end, trials = machine.world.end, machine.world.trials
    assert end.best is not None
    won = trials[end.best].config
    true = machine.speed[won] / machine.speed[BASELINE]
    speedup, low, high = end.speedup, end.result["speedup_low"], end.result["speedup_high"]
    is_claim = speedup is not None and won != BASELINE
    held = speedup is None or (low or 0.0) * (1 - 1e-9) <= true <= (high or math.inf) * (1 + 1e-9)
    return {
        "above 1.02": float(is_claim and (speedup or 0) > 1.02),
        "low above 1": float(is_claim and (low or 0) > 1),
        "claims": float(is_claim),
        "held": float(held),
        "held claims": float(held and is_claim),
        "too noisy": float(bool(end.result.get("too_noisy"))),
        "regret": 1 - true / max(machine.speed.values()),
        "finals": sum(t.purpose is TrialPurpose.FINAL for t in trials.values()),
        "default runs": sum(t.config == BASELINE for t in trials.values()),
        "seconds": machine.world.passed_s,
    }


def figures(kind: str, world: str, studies: int) -> dict[str, float]:
    """Means over simulated studies."""
    total: Counter[str] = Counter()
    for seed in range(studies):
        total.update(study(kind, world, seed))
    return {name: value / studies for name, value in total.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--worlds", default=",".join(WORLDS))
    asked = parser.parse_args()
    print(
        "| load | world | above 1.02 | low above 1 | held | held of claims | too noisy | regret | final runs | default runs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind in asked.loads.split(","):
        for world in asked.worlds.split(","):
            f = figures(kind, world, asked.studies)
            of_claims = f"{f['held claims'] / f['claims']:.1%}" if f["claims"] else "none"
            print(
                f"| {kind} | {world} | {f['above 1.02']:.1%} | {f['low above 1']:.1%} | {f['held']:.1%} | {of_claims} | {f['too noisy']:.1%} | "
                f"{f['regret']:.2%} | {f['finals']:.1f} | {f['default runs']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
