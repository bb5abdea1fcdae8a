"""What the noise between runs does to the early stop, to the finals and to the claim, on simulated
machines.

    python -m tests.benchmarks.run_noise [--studies 300] [--between 0.02] [--busy]

A run of a config is as fast as the config times exp(N(0, between)); its steps have 3% noise that is
correlated by 0.5 from step to step, and in a tenth of the runs a burst makes three steps in a row
three times slower.

`--busy`: other work shares the machine in most runs. Such a run is slower by a factor whose
logarithm is exponential with mean 0.2, and each of its steps by a further one with mean 0.15; three
runs in ten are quiet.

    equal      all configs as fast as the default one      spread   configs of 0.9 to 1.2 times the default's speed, 2% apart
    stopped    a search trial that was given up before its steps were measured
    dropped    the best of ten, 1% ahead of nine equals, was given up by the search
    held       the interval holds the true ratio of the named winner to the baseline; a study that is too noisy to claim anything holds
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.reward import score
from autotune.spec import (
    Measurement,
    MeasureSpec,
    ParallelConfig,
    Study,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.stopping import trial_decision
from autotune.study.controller import decide
from autotune.study.controller.finals.finalists import first_finalists, next_final
from autotune.study.controller.scoring import Scorer
from tests.study.controller.world import BASELINE, CONFIGS, study

STEP_NOISE, ALIKE = 0.03, 0.5
BURSTS, BURST_STEPS, BURST = 0.1, 3, 3.0
STEPS = 12
BUSY, BUSY_RUN, BUSY_STEP = 0.7, 0.2, 0.15


class Machine:
    """Measures configs of given true speeds."""

    def __init__(
        self, speeds: Sequence[float], between: float, seed: int, *, busy: bool = False
    ) -> None:
        self.rng, self.between, self.busy = np.random.default_rng(seed), between, busy
        others = [c for c in CONFIGS if c != BASELINE]
        self.speed = dict(zip([BASELINE, *others], speeds, strict=False))
        self.study: Study = study(measure=MeasureSpec(finalists=2, final_rounds=2))
        self.scorer = Scorer(self.study, {})
        self.trials: list[Trial] = []

    def times(self, config: ParallelConfig, steps: int = STEPS) -> list[float]:
        """Step times of one run."""
        noise = self.rng.normal(size=steps)
        for i in range(1, steps):
            noise[i] = ALIKE * noise[i - 1] + math.sqrt(1 - ALIKE**2) * noise[i]
        times = (
            np.exp(self.rng.normal(0, self.between) + STEP_NOISE * noise) / self.speed[config] * 0.1
        )
        if self.busy and self.rng.random() < BUSY:
            times *= np.exp(
                self.rng.exponential(BUSY_RUN) + self.rng.exponential(BUSY_STEP, size=steps)
            )
        if self.rng.random() < BURSTS:
            start = int(self.rng.integers(0, steps - BURST_STEPS + 1))
            times[start : start + BURST_STEPS] *= BURST
        return [float(t) for t in times]

    def add(
        self,
        config: ParallelConfig,
        purpose: TrialPurpose,
        times: Sequence[float],
        *,
        stopped: bool = False,
    ) -> Trial:
        """A trial that ended with these step times."""
        m = Measurement(
            step_times_s=tuple(times), tokens_per_step=config.global_batch_size * 32, num_ranks=4
        )
        status = TrialStatus.STOPPED if stopped else TrialStatus.COMPLETED
        trial = Trial(
            config=config, number=len(self.trials), purpose=purpose, status=status, measurement=m
        )
        trial = replace(
            trial,
            reward=score(
                trial,
                reference=self.scorer.reference,
                objective=self.study.objective,
                workload=self.study.workload,
            ),
        )
        self.scorer.learn(trial)
        self.trials.append(trial)
        return trial

    def search(self) -> list[ParallelConfig]:
        """The baseline, then all others in turn; those that were given up."""
        self.add(BASELINE, TrialPurpose.BASELINE, self.times(BASELINE))
        given_up = []
        for config in list(self.speed)[1:]:
            asked = Trial(config=config, number=len(self.trials))
            done = [
                t for t in self.trials if t.status is TrialStatus.COMPLETED and t.reward is not None
            ]
            best = max(done, key=lambda t: t.reward.total if t.reward else -math.inf)
            beat, times, stopped = (
                self.scorer.time_to_beat(asked, best),
                self.times(config, 30),
                False,
            )
            for n in range(1, 31):
                decision = trial_decision(times[:n], self.study.measure, beat)
                if decision.stop:
                    stopped, times = decision.stopped_early, times[:n]
                    break
            given_up += [config] if stopped else []
            self.add(config, TrialPurpose.SEARCH, times, stopped=stopped)
        return given_up

    def finals(self) -> int:
        """Races the finalists; runs that it took."""
        who, runs = first_finalists(self.trials, self.study), 0
        while (upcoming := next_final(who, self.trials, self.study)) is not None:
            self.add(upcoming.config, TrialPurpose.FINAL, self.times(upcoming.config))
            runs += 1
        return runs


def claims(
    speeds: Sequence[float], between: float, studies: int, *, busy: bool = False
) -> dict[str, float]:
    """Shares over simulated studies of these true speeds, the baseline's first."""
    above = held = regret = runs = steps = 0.0
    for seed in range(studies):
        order = np.random.default_rng(seed).permutation(len(speeds) - 1)
        machine = Machine([speeds[0], *(speeds[1 + i] for i in order)], between, seed, busy=busy)
        machine.search()
        steps += sum(
            len(t.measurement.step_times_s) for t in machine.trials if t.measurement is not None
        )
        runs += machine.finals()
        winner = decide(machine.trials, machine.study)
        assert winner.best is not None
        speedup = winner.speedup
        true = machine.speed[winner.best.config] / machine.speed[BASELINE]
        above += speedup is not None and speedup > 1.02
        held += speedup is None or (
            (winner.speedup_low or 0.0) <= true * (1 + 1e-12)
            and true <= (winner.speedup_high or math.inf) * (1 + 1e-12)
        )
        regret += 1 - true / (max(speeds) / speeds[0])
    totals = {"above 1.02": above, "held": held, "regret": regret, "runs": runs, "steps": steps}
    return {name: float(total) / studies for name, total in totals.items()}


def stops(between: float, studies: int) -> tuple[float, float]:
    """Share of equal configs that are stopped, and of searches that give up the best of ten, 1%
    ahead of nine equals."""
    equal = dropped = 0
    for seed in range(studies):
        equal += len(Machine([1.0] * 11, between, seed).search())
        speeds = [1.0, *np.random.default_rng(seed).permutation([1.01, *[1.0] * 9])]
        machine = Machine(speeds, between, seed)
        dropped += max(machine.speed, key=lambda c: machine.speed[c]) in machine.search()
    return equal / studies / 10, dropped / studies


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=300)
    parser.add_argument("--between", type=float, nargs="*", default=[0.01, 0.02, 0.04])
    parser.add_argument("--busy", action="store_true")
    asked = parser.parse_args()
    print("| between runs | equal configs stopped | best of ten dropped |\n|---|---|---|")
    for between in () if asked.busy else asked.between:
        equal, dropped = stops(between, asked.studies)
        print(f"| {between:.0%} | {equal:.1%} | {dropped:.1%} |", flush=True)
    print(
        "\n| between runs | worlds | claims above 1.02 | interval held | regret of the winner | final runs | steps of the search |\n|---|---|---|---|---|---|---|"
    )
    worlds = {"equal": [1.0] * 11, "spread": [1.0, *np.arange(0.92, 1.21, 0.02)[:15]]}
    for between in asked.between:
        for name, speeds in worlds.items():
            c = claims(speeds, between, asked.studies, busy=asked.busy)
            print(
                f"| {between:.0%} | {name} | {c['above 1.02']:.1%} | {c['held']:.1%} | {c['regret']:.2%} | {c['runs']:.1f} | {c['steps']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
