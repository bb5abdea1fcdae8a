"""What a machine that changes during a study does to its winner and its claim, on simulated
machines.

    python -m tests.benchmarks.drift [--studies 200] [--kinds quiet,step,back,ramp,burst,wild] [--parallel 1]

Fifteen configs of 0.8 to 1.3 times the baseline's speed, 2% and more apart, searched in random
order; predictions are off by 10% and say so. A run is as fast as its config times exp(N(0, 2%));
its steps have 3% noise that is correlated by 0.5. The early stop, the finals and the claim are the
controller's.

    quiet    the machine stays as it is                     step     it becomes 0.5 to 4 times slower (log-uniform) at a random time of the search
    back     the same, and comes back after a third of it   ramp     it becomes as much slower steadily, over the whole search
    burst    the same for the time of two to four trials    wild     one trial in eight is four times slower, as long as it runs

    best wins     the winner is the truly best config, or within 1% of it
    regret        of the winner
    false claims  the interval of the claim does not hold the true ratio of the winner to the baseline
    dropped       the truly best config was stopped early and not re-measured
    default runs  of the baseline during the search, beyond the first
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.ports import AttemptEnded, TrialRequest
from autotune.spec import (
    Estimate,
    MemoryParts,
    ParallelConfig,
    TimeParts,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.stopping import trial_decision
from tests.study.controller.world import BASELINE, CONFIGS, World, measured, study

BETWEEN, STEP_NOISE, ALIKE = 0.02, 0.03, 0.5
PREDICTION_SD = 0.1
SETUP_S, STEP_S = 10.0, 1.0
SEARCH_S = len(CONFIGS) * (SETUP_S + 15 * STEP_S)
"""about how long a search takes on an idle machine"""
WILD_SHARE, WILD = 1 / 8, 4.0
KINDS = ("quiet", "step", "back", "ramp", "burst", "wild")
Slowness = Callable[[float], float]
"""factor on all step times at a time of the study, s"""


def slowness_of(kind: str, rng: np.random.Generator) -> Slowness:
    """How the machine changes."""
    factor = math.exp(rng.uniform(math.log(0.5), math.log(4.0)))
    begins = float(rng.uniform(0.1, 0.9)) * SEARCH_S
    lasts = {
        "step": math.inf,
        "back": SEARCH_S / 3,
        "burst": float(rng.uniform(2, 4)) * SETUP_S * 2.5,
    }.get(kind, 0.0)
    if kind == "ramp":
        return lambda at_s: float(factor ** min(1.0, at_s / SEARCH_S))
    return lambda at_s: factor if begins <= at_s < begins + lasts else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One simulated study."""

    best_wins: bool
    regret: float
    false_claim: bool
    dropped: bool
    trials: int
    default_runs: int
    finals: int
    changes: int


class Machine:
    """A runner that measures configs of given true speeds on a machine that changes."""

    def __init__(self, kind: str, seed: int, parallel: int = 1) -> None:
        self.rng = np.random.default_rng([seed, KINDS.index(kind)])
        others = [c for c in CONFIGS if c != BASELINE]
        speeds = self.rng.permutation(np.linspace(0.8, 1.3, len(others)))
        self.speed: dict[ParallelConfig, float] = {
            BASELINE: 1.0,
            **dict(zip(others, map(float, speeds), strict=True)),
        }
        self.slowness, self.is_wild = slowness_of(kind, self.rng), kind == "wild"
        self.off = {c: float(self.rng.normal(0, PREDICTION_SD)) for c in self.speed}
        options: dict[str, Any] = {
            "predict": self.predict,
            "correct": self.correct,
            "baseline": BASELINE,
        }
        self.world = World(
            study(max_trials=25, parallel_trials=parallel), configs=others, **options
        )
        self.began_s = self.world.now_s

    def predict(self, config: ParallelConfig) -> Estimate:
        """A prediction that is off by as much as it says."""
        step_s = STEP_S / self.speed[config] * math.exp(self.off[config])
        return prediction(step_s, PREDICTION_SD)

    def correct(
        self, config: ParallelConfig, estimate: Estimate, trials: Iterable[Trial]
    ) -> Estimate:
        """The prediction moved by what the trials so far are off by, as a study does it."""
        errors = [
            math.log(t.measurement.step_time_s / float(self.predict(t.config).step_time_s))
            for t in trials
            if t.is_measured and t.measurement is not None
        ]
        off = math.fsum(errors) / (len(errors) + 1)
        return prediction(float(estimate.step_time_s) * math.exp(off), PREDICTION_SD)

    def times(self, request: TrialRequest) -> tuple[list[float], str]:
        """Step times of one run that begins now, and why it was stopped early."""
        noise = self.rng.normal(size=request.measure.max_steps)
        for i in range(1, len(noise)):
            noise[i] = ALIKE * noise[i - 1] + math.sqrt(1 - ALIKE**2) * noise[i]
        run = math.exp(self.rng.normal(0, BETWEEN)) / self.speed[request.config] * STEP_S
        if self.is_wild and request.number and self.rng.random() < WILD_SHARE:
            run *= WILD
        at_s, times = self.world.now_s + SETUP_S, list[float]()
        for z in noise:
            times.append(run * self.slowness(at_s - self.began_s) * math.exp(STEP_NOISE * z))
            at_s += times[-1]
            decision = trial_decision(times, request.measure, request.beat_step_time_s)
            if decision.stop:
                return times, decision.reason if decision.stopped_early else ""
        return times, ""

    def run(self) -> Outcome:
        """The whole study."""
        world = self.world
        world.tick()
        while not world.ends:
            number = min(r.number for r in world.running.values())
            times, stopped = self.times(world.request(number))
            world.tick(SETUP_S + sum(times))
            m = replace(
                measured(world.request(number).config), step_times_s=tuple(times), setup_s=SETUP_S
            )
            world.report(AttemptEnded(id=world.request(number).id, measurement=m, stopped=stopped))
            world.tick()
        return self.outcome()

    def outcome(self) -> Outcome:
        """What it came to."""
        end, trials = self.world.end, list(self.world.trials.values())
        assert end.best is not None
        best = max(self.speed, key=lambda c: self.speed[c])
        won = self.world.trials[end.best].config
        true, claimed = self.speed[won] / self.speed[BASELINE], end.result
        low, high = claimed["speedup_low"] or 0.0, claimed["speedup_high"] or math.inf
        return Outcome(
            best_wins=self.speed[won] >= 0.99 * self.speed[best],
            regret=1 - self.speed[won] / self.speed[best],
            false_claim=not low * (1 - 1e-9) <= true <= high * (1 + 1e-9),
            dropped=_is_dropped([t for t in trials if t.config == best]),
            trials=sum(t.purpose is TrialPurpose.SEARCH for t in trials),
            default_runs=sum(t.purpose is TrialPurpose.BASELINE for t in trials) - 1,
            finals=sum(t.purpose is TrialPurpose.FINAL for t in trials),
            changes=len(self.world.controller.index.levels.changes),
        )


def _is_dropped(runs: list[Trial]) -> bool:
    return bool(runs) and all(t.status is TrialStatus.STOPPED for t in runs)


def prediction(step_s: float, sd: float) -> Estimate:
    """An estimate of this step time, s, that says to be off by a relative standard deviation."""
    spread = math.exp(1.645 * sd)
    return Estimate(
        step_time_s=step_s,
        time_parts_s=TimeParts(**dict.fromkeys(TimeParts.__slots__, 0.0) | {"compute": step_s}),
        peak_memory_bytes=1e9,
        memory_parts_bytes=MemoryParts(
            **dict.fromkeys(MemoryParts.__slots__, 0.0) | {"weights": 1e9}
        ),
        oom_probability=0.0,
        tokens_per_s=256 / step_s,
        tokens_per_s_per_gpu=64 / step_s,
        mfu=0.4,
        step_time_low_s=step_s / spread,
        step_time_high_s=step_s * spread,
        peak_memory_low_bytes=9e8,
        peak_memory_high_bytes=1.1e9,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--parallel", type=int, default=1, help="trials that run at once")
    asked = parser.parse_args()
    print(
        "| machine | best wins | regret | false claims | dropped | search trials | default runs | final runs | changes seen |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in asked.kinds.split(","):
        runs = [Machine(kind, seed, asked.parallel).run() for seed in range(asked.studies)]
        wins, regret, false, dropped, trials, default_runs, finals, changes = (
            float(np.mean([getattr(r, name) for r in runs])) for name in Outcome.__slots__
        )
        print(
            f"| {kind} | {wins:.1%} | {regret:.2%} | {false:.1%} | {dropped:.1%} | {trials:.1f} | {default_runs:.2f} | {finals:.1f} | {changes:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
