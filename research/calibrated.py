"""Effect of `autotune calibrate`: predicted and measured step times of real trials on this machine,
without, with a quick and with a full calibration.

    python -m research.calibrated [--configs 12] [--rounds 2]

Calibrates, then trains configs of the laptop space on local ranks: the baseline, and others spread
evenly over world sizes, degrees, ZeRO stages, batches and precisions. Measured: the median step
time of each trial, and the median of these over the rounds (every other round in reverse order).

    ratio      measured / predicted step time, median         error   |measured / predicted - 1|, median and 90th percentile
    Spearman   rank correlation of predicted and measured     inside  share of trials in the predicted 90% interval
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import spearmanr

from autotune.api import load_study
from autotune.cost import Calibration, calibration_for, estimate
from autotune.ports import TrialRequest, TrialRunner
from autotune.registry import calibrator, make_runner
from autotune.space import SearchSpace, default_config
from autotune.spec import ConfigTable, ParallelConfig, Study
from autotune.testing.runners import ended, events_until_ended

SPEC = Path(__file__).parents[1] / "search_spaces" / "studies" / "laptop.yaml"
DEADLINE_S = 600.0


def chosen(space: SearchSpace, count: int, seed: int = 0) -> list[ParallelConfig]:
    """The baseline and others: of a shuffled list, each time the one that differs from all before
    in most knobs."""
    table = space.coordinates()
    order = np.random.default_rng(seed).permutation(len(space))
    first = space.index_of(default_config(space))
    picked = [int(order[0]) if first is None else first]
    while len(picked) < min(count, len(space)):
        apart = np.min([np.sum(table[order] != table[p], axis=1) for p in picked], axis=0)
        picked.append(int(order[int(np.argmax(apart))]))
    return [space[i] for i in picked]


def step_time_s(runner: TrialRunner, study: Study, config: ParallelConfig, number: int) -> float:
    """The median step of one trial, s; nan when it fails."""
    asked = TrialRequest(
        study="calibrated",
        number=number,
        attempt=1,
        workload=study.workload,
        config=config,
        measure=study.measure,
    )
    runner.start(asked)
    end = ended(events_until_ended(runner, [asked.id], deadline_s=DEADLINE_S))
    if end.measurement is not None and end.measurement.step_times_s:
        return median(end.measurement.step_times_s)
    print(f"  {config}: {end.failure.message if end.failure else 'cancelled'}", flush=True)
    return float("nan")


def row(
    name: str, study: Study, table: ConfigTable, measured: np.ndarray, constants: Calibration
) -> str:
    """One line of the table."""
    e = estimate(study.workload, table, calibration=constants)
    ratio = measured / np.asarray(e.step_time_s)
    inside = (measured >= np.asarray(e.step_time_low_s)) & (
        measured <= np.asarray(e.step_time_high_s)
    )
    error = np.abs(ratio - 1.0)
    rank = spearmanr(np.asarray(e.step_time_s), measured)[0]
    return (
        f"| {name} | {np.median(ratio):.2f} | {np.median(error):.0%} / {np.quantile(error, 0.9):.0%} | {rank:.2f} | "
        f"{np.mean(inside):.0%} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrates, measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--configs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args(arguments)
    loaded = load_study(SPEC, overrides={"runner": "local", "enqueue": []})
    study = replace(
        loaded,
        measure=replace(loaded.measure, warmup_steps=2, min_steps=6, max_steps=8, precision=0.0),
    )
    workload, space = study.workload, SearchSpace.build(study.workload, study.space)
    found: dict[str, Calibration] = {}
    for name in ("quick", "full"):
        began_s = time.monotonic()
        measured = calibrator("local")(quick=name == "quick")
        print(
            f"{name}: calibrated in {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        found[name] = Calibration.from_measurements(measured, cluster=workload.cluster)
    before, after = calibration_for(workload), found["full"]
    for name, value in after.to_dict().items():
        if isinstance(value, float) and value != getattr(before, name):
            print(
                f"  {name:20} {getattr(before, name):10.4g} -> quick {getattr(found['quick'], name):10.4g}, full {value:10.4g}"
            )

    configs = chosen(space, args.configs)
    times = np.full((args.rounds, len(configs)), np.nan)
    runner = make_runner("local", max_ranks=4, device="cpu")
    try:
        for r in range(args.rounds):
            for i in range(len(configs))[:: 1 if r % 2 == 0 else -1]:
                times[r, i] = step_time_s(runner, study, configs[i], r * len(configs) + i)
    finally:
        runner.close()
    ran = ~np.isnan(times).any(axis=0)
    table = ConfigTable.of([c for c, ok in zip(configs, ran, strict=True) if ok])
    steps = np.median(times[:, ran], axis=0)
    print(
        f"{ran.sum()} of {len(configs)} configs in {args.rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    e = {
        name: estimate(workload, table, calibration=c)
        for name, c in {"before": before, **found}.items()
    }
    for i, config in enumerate(table):
        guesses = ", ".join(
            f"{name} {1e3 * float(np.asarray(x.step_time_s)[i]):.1f}" for name, x in e.items()
        )
        print(f"  {1e3 * steps[i]:8.1f} ms measured, {guesses}: {config}")
    print("| constants | ratio | error: median / p90 | Spearman | inside |\n|---|---|---|---|---|")
    print(row("known before", study, table, steps, before))
    print(row("quick calibration", study, table, steps, found["quick"]))
    print(row("full calibration", study, table, steps, after))


if __name__ == "__main__":
    main(sys.argv[1:])
