"""Searchers on real trials: short trainings of the laptop space on this machine, with the winners
measured again.

    python -m tests.benchmarks.real_search [--seeds 3] [--searchers bayesian,random] [--budget 12] [--rounds 3] [--first-look 3] [--store FILE]

Every study measures the baseline and then `budget` configs of its searcher: no enqueued configs, no
history, no early stop, and throughput alone as objective. All studies share one warm runner and
take turns (all searchers with one seed, then the next seed).

The speed of a config within a study is one short measurement on a machine that drifts. So every
config that was the best of its study at some time and came within `NEAR` of that study's result is
re-measured, together with the baseline, in rounds of alternating order. Its speed is the median
over the rounds of its tokens per second relative to the round's geometric mean. All columns use
these speeds only.

    found       speed of the study's winner relative to the fastest config of all studies
    over default  the same relative to the baseline
    within 5%   trials until the best so far was within 5% of the fastest (0: the baseline was; budget + 1: never)
    steps       optimizer steps of all trials of a study, warm-up included; a trial that is far slower than the best ends at its first look

All results are kept in the store: the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean, median

from autotune.api import load_study, open_store
from autotune.cost import estimate
from autotune.cost.learn.correction import Correction
from autotune.ports import Store, StudyRecord, TrialRunner
from autotune.registry import make_runner
from autotune.space import SearchSpace
from autotune.spec import (
    MeasureSpec,
    ParallelConfig,
    SpaceSpec,
    Study,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.study.assembly import Assembly, assemble
from autotune.study.controller import Controller
from autotune.study.lease import StudyLease
from autotune.study.loop import Loop
from autotune.study.progress import TrialEnded

SPEC = Path(__file__).parents[2] / "search_spaces" / "studies" / "laptop.yaml"
STORE = Path("build") / "real_search.db"
SEARCHERS = "bayesian,reinforce,random,optuna:tpe"
STEPS = 8
CLOSE, NEAR = 0.05, 0.2
Speeds = Mapping[ParallelConfig, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One study that ended."""

    searcher: str
    seed: int
    seconds: float
    incumbents: tuple[tuple[int, ParallelConfig, float], ...]
    """each best so far: trials of the searcher until then, config, tokens per second then"""
    failed: int
    steps: int

    @property
    def winner(self) -> ParallelConfig:
        """The config that the study found."""
        return self.incumbents[-1][1]

    def near(self) -> list[ParallelConfig]:
        """Those of the incumbents that may have been as fast as the winner."""
        best = self.incumbents[-1][2]
        return [config for _, config, speed in self.incumbents if speed >= (1 - NEAR) * best]


def run(store: Store, runner: TrialRunner, study: Study, assembly: Assembly) -> StudyRecord:
    """Runs the study on a runner that stays open, unless the store has it already."""
    found = next((r for r in store.studies(name=study.name) if r.study.name == study.name), None)
    record = found or store.submit(study, {})
    if record.status.is_terminal:
        return record
    with StudyLease.claim(store, record.id) as lease:
        controller = Controller(
            study_id=record.id,
            study=study,
            searcher=assembly.searcher(),
            capacity=runner.capacity,
            baseline=study.baseline,
            predict=assembly.predict,
            correct=Correction(assembly.space, assembly.calibration).applied,
            refuse=assembly.refuse,
            past=lease.told_in_order(),
            elapsed_s=record.elapsed_s,
        )
        return Loop(controller, runner, lease, on_event=_say).run()


def _say(event: object) -> None:
    if isinstance(event, TrialEnded):
        trial = event.trial
        speed = (
            trial.measurement.tokens_per_s
            if trial.is_measured and trial.measurement
            else float("nan")
        )
        why = f" {trial.failure.kind}" if trial.failure else ""
        print(
            f"  {trial.number:2d} {trial.status}{why} {speed:9.0f} tokens/s  {trial.config}",
            flush=True,
        )


def played(store: Store, record: StudyRecord) -> Played:
    """What the study came to."""
    incumbents: list[tuple[int, ParallelConfig, float]] = []
    count = failed = steps = 0
    for trial in store.trials(record.id):
        if trial.status is TrialStatus.CANCELLED:
            continue
        count += trial.purpose is TrialPurpose.SEARCH
        failed += trial.status is TrialStatus.FAILED
        steps += len(store.steps(record.id, trial.number)["step"])
        speed = trial.measurement.tokens_per_s if trial.is_measured and trial.measurement else 0.0
        if trial.status is TrialStatus.COMPLETED and speed > (
            incumbents[-1][2] if incumbents else 0.0
        ):
            incumbents.append((count, trial.config, speed))
    return Played(
        searcher=record.study.searcher,
        seed=record.study.seed,
        seconds=record.elapsed_s,
        incumbents=tuple(incumbents),
        failed=failed,
        steps=steps,
    )


def measured_again(
    store: Store, runner: TrialRunner, base: Study, who: Sequence[ParallelConfig], rounds: int
) -> Speeds:
    """Speeds of these configs, each round a study of its own; what failed in a round has none."""
    speeds: dict[ParallelConfig, list[float]] = {config: [] for config in who}
    for r in range(rounds):
        order = list(who if r % 2 == 0 else who[::-1])
        study = replace(
            base,
            name=f"{base.name}, round {r}",
            searcher="grid",
            space=SpaceSpec(),
            budget=replace(base.budget, max_trials=len(order), max_failed_trials=len(order) + 1),
            measure=replace(base.measure, min_steps=STEPS),
            baseline=None,
        )
        space = SearchSpace.of(base.workload, order)
        assembly = Assembly(
            study=study,
            space=space,
            calibration=None,
            estimate=estimate(base.workload, space.table),
            baseline=order[0],
        )
        print(study.name, flush=True)
        record = run(store, runner, study, assembly)
        seen = {
            t.config: t
            for t in store.trials(record.id)
            if t.is_measured and t.measurement is not None
        }
        mean = geometric_mean([_tokens_per_s(t) for t in seen.values()])
        for config, trial in seen.items():
            speeds[config].append(_tokens_per_s(trial) / mean)
    return {config: median(values) for config, values in speeds.items() if len(values) == rounds}


def _tokens_per_s(trial: Trial) -> float:
    return trial.measurement.tokens_per_s if trial.measurement is not None else 0.0


def table(
    studies: Sequence[Played], speeds: Speeds, default: ParallelConfig, budget: int
) -> list[str]:
    """The lines of the table, a searcher each."""
    fastest = max(speeds.values())
    lines = [
        "| searcher | seeds | found: mean | worst | over default | within 5%: mean | each | failed | steps | s per study |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(s.searcher for s in studies):
        own = [s for s in studies if s.searcher == name]
        found = [speeds.get(s.winner, 0.0) / fastest for s in own]
        until = [
            next(
                (n for n, c, _ in s.incumbents if speeds.get(c, 0.0) >= (1 - CLOSE) * fastest),
                budget + 1,
            )
            for s in own
        ]
        gain = fmean(found) * fastest / speeds[default]
        lines.append(
            f"| `{name}` | {len(own)} | {fmean(found):.1%} | {min(found):.1%} | {gain:.2f} | {fmean(until):.1f} | "
            f"{', '.join(map(str, until))} | {fmean(s.failed for s in own):.1f} | {fmean(s.steps for s in own):.0f} | "
            f"{fmean(s.seconds for s in own):.0f} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the store does not have yet, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searchers", default=SEARCHERS, help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--first-look", type=int, default=MeasureSpec().first_look, help="`measure.first_look`"
    )
    parser.add_argument("--store", type=Path, default=STORE)
    args = parser.parse_args(arguments)
    loaded = load_study(
        SPEC, overrides={"runner": "local", "enqueue": [], "objective": {"stability_weight": 0}}
    )
    base = replace(
        loaded,
        name=f"{args.budget} trials",
        budget=replace(
            loaded.budget,
            max_trials=args.budget,
            max_failed_trials=args.budget + 1,
            max_wall_s=1e6,
            min_gain=0.0,
        ),
        measure=replace(
            loaded.measure, warmup_steps=1, first_look=args.first_look, max_steps=STEPS, finalists=0
        ),
    )
    assembly = assemble(base)
    base = replace(base, baseline=assembly.baseline)
    began, load = time.monotonic(), [os.getloadavg()[0]]
    print(
        f"{len(assembly.space)} configs of {base.space.name} on {base.workload.cluster.name}, load {load[0]:.1f}"
    )
    args.store.parent.mkdir(exist_ok=True)
    store, runner = (
        open_store(f"sqlite:///{args.store.absolute()}"),
        make_runner("local", max_ranks=4, device="cpu"),
    )
    studies = []
    try:
        for seed in range(args.seeds):
            for name in args.searchers.split(","):
                study = replace(
                    base, name=f"{base.name}: {name}, seed {seed}", searcher=name, seed=seed
                )
                print(study.name, flush=True)
                record = run(store, runner, study, replace(assembly, study=study))
                studies.append(played(store, record))
                load.append(os.getloadavg()[0])
        who = list(dict.fromkeys([assembly.baseline, *(c for s in studies for c in s.near())]))
        rounds = replace(base, name=f"{base.name}, {args.searchers}, {args.seeds} seeds")
        speeds = measured_again(store, runner, rounds, who, args.rounds)
        load.append(os.getloadavg()[0])
    finally:
        runner.close()
        store.close()
    print(
        f"{len(who)} configs re-measured in {args.rounds} rounds; load {min(load):.1f} to {max(load):.1f}; "
        f"{time.monotonic() - began:.0f} s"
    )
    print("\n".join(table(studies, speeds, assembly.baseline, args.budget)))
    for config, speed in sorted(speeds.items(), key=lambda pair: -pair[1]):
        print(f"  {speed / max(speeds.values()):.3f} {config}")


if __name__ == "__main__":
    main(sys.argv[1:])
