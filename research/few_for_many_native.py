"""Few ranks for many, for real on this machine: proxies on one or two ranks stand for four or eight
ranks of the native trainer (CPU, gloo).

    python -m research.few_for_many_native [--held 1,2] [--targets 4,8] [--proxies 5] [--store FILE]

Every config of each target is measured too, which a user with few ranks cannot do. The ranks of a
target share the cores of this machine, so that the step of a target differs from that of its
proxies for a reason that no proxy shows: the cost model has to carry over. A rank at hand has one
core at most, as one of the target has: with two it would run with two threads.

    no proxies      the cost model as it ships
    with proxies    the same after the study with a target (`autotune tune`), which chose its proxies itself
    error           median of |predicted / measured - 1|
    regret          by how much the target's fastest config is faster than the first pick, and than the best of its first three
    in interval     share of measured steps within the 90% interval

All results are kept in the store: the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune import api
from autotune.ports import Store
from autotune.search.target_searcher import TargetSearcher
from autotune.spec import (
    ClusterSpec,
    MeasureSpec,
    ParallelConfig,
    Study,
    TrialPurpose,
    config_label,
)
from autotune.study.assembly import assemble

STORE = Path("build") / "few_for_many_native.db"
Z90 = 1.645
SPEC: dict[str, Any] = {
    "model": "nano-llama",
    "workload": {"seq_len": 64, "global_batch_size": 32},
    "space": {
        "tp": [1, 2],
        "pp": [1, 2],
        "micro_batch_size": [2, 4, 8],
        "precision": ["fp32"],
    },
    "objective": {"metric": "throughput", "stability_weight": 0.0},
    "trainer": "native",
    "runner": {"kind": "local", "max_ranks": 8},
    "check": False,
    "calibrate": False,
}
MEASURE = MeasureSpec(
    warmup_steps=2,
    first_look=0,
    min_steps=8,
    max_steps=16,
    precision=0.03,
    finalists=0,
    final_rounds=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What one state of knowledge says of a target's configs."""

    name: str
    step_s: NDArray[np.float64]
    """predicted, shape (N,)"""
    sigma: NDArray[np.float64]
    """standard deviation of its log, shape (N,)"""
    order: Sequence[int]
    """the configs, best first"""


def on(study: Study, ranks: int, held: int | None = None) -> Study:
    """The study on so many ranks of this machine, or for them with `held` at hand."""

    def cluster(count: int) -> ClusterSpec:
        return replace(
            ClusterSpec.of(f"cpu-1x{count}"), cores_per_node=min(count, os.cpu_count() or 1)
        )

    return replace(
        study,
        name=f"{ranks} ranks" if held is None else f"{ranks} ranks by {held}",
        workload=replace(study.workload, cluster=cluster(ranks)),
        measure=MEASURE,
        at_hand=None if held is None else cluster(held),
    )


def ended(store: Store, study: Study) -> api.Result:
    """The study's result: from the store where it has ended there."""
    known = store.studies(name=study.name, limit=1)
    if known and known[0].status.is_terminal:
        return api.result_of(store, known[0].id)
    return api.tune(
        study, store=store, on_event=lambda event: print(f"  {type(event).__name__}", end="\r")
    )


def measured_steps(store: Store, study: Study) -> dict[ParallelConfig, float]:
    """Seconds of a step of every config of the target, measured on all of its ranks."""
    alone = replace(
        study,
        searcher="grid",
        budget=replace(study.budget, max_trials=1000, max_wall_s=7200.0, min_gain=0),
    )
    # trials of the grid that cannot win end early, and count with the steps that they have
    trials = ended(store, alone).trials
    return {
        t.config: t.measurement.step_time_s
        for t in trials
        if t.is_measured and t.measurement and t.purpose is TrialPurpose.SEARCH
    }


def column(name: str, searcher: TargetSearcher) -> Column:
    """What the searcher knows now."""
    standing, table = searcher.standing, searcher.space.table
    tokens = np.asarray(table.global_batch_size, dtype=float) * searcher.space.workload.seq_len
    return Column(
        name=name,
        step_s=tokens / np.exp(standing.log_tokens_per_s),
        sigma=searcher.sigma_of(np.arange(len(table))),
        order=[int(i) for i in standing.order],
    )


def report(
    title: str,
    searcher: TargetSearcher,
    columns: Sequence[Column],
    steps: dict[ParallelConfig, float],
) -> None:
    """Prints the target's table and what the columns come to."""
    configs = list(searcher.space)
    last = columns[-1]
    print(
        f"\n## {title}\n\n| rank | config | no proxies | with proxies | 90% interval | measured |\n|---|---|---|---|---|---|"
    )
    for rank, i in enumerate(last.order, 1):
        seen = f"{steps[configs[i]] * 1e3:.0f} ms" if configs[i] in steps else "failed"
        low, high = (
            last.step_s[i] * math.exp(sign * Z90 * last.sigma[i]) * 1e3 for sign in (-1, 1)
        )
        before, after = columns[0].step_s[i] * 1e3, last.step_s[i] * 1e3
        print(
            f"| {rank} | {config_label(configs[i])} | {before:.0f} ms | {after:.0f} ms | {low:.0f} to {high:.0f} ms | {seen} |"
        )
    known = [i for i, config in enumerate(configs) if config in steps]
    best = min(steps.values())
    print(
        "\n| | error | error of the top half | regret: first pick | best of three | in interval |\n|---|---|---|---|---|---|"
    )
    for col in columns:
        errors = {i: abs(col.step_s[i] / steps[configs[i]] - 1.0) for i in known}
        top = sorted(known, key=lambda i: steps[configs[i]])[: (len(known) + 1) // 2]
        picks = [steps[configs[i]] for i in col.order if i in errors]
        inside = [
            abs(math.log(steps[configs[i]] / col.step_s[i])) <= Z90 * col.sigma[i] for i in known
        ]
        print(
            f"| {col.name} | {median(errors.values()):.1%} | {median(errors[i] for i in top):.1%} | {1 - best / picks[0]:.1%} | "
            f"{1 - best / min(picks[:3]):.1%} | {sum(inside) / len(inside):.0%} |"
        )


def main() -> None:
    """Runs what the store lacks and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--held", default="1,2")
    parser.add_argument("--targets", default="4,8")
    parser.add_argument("--proxies", type=int, default=5)
    parser.add_argument("--store", default=str(STORE))
    asked = parser.parse_args()
    Path(asked.store).parent.mkdir(parents=True, exist_ok=True)
    store = api.open_store(f"sqlite:///{Path(asked.store).resolve()}")
    for ranks in map(int, asked.targets.split(",")):
        spec = api.load_study({**SPEC, "cluster": f"cpu-1x{ranks}"})
        steps = measured_steps(store, on(spec, ranks))
        for held in map(int, asked.held.split(",")):
            study = on(spec, ranks, held)
            study = replace(
                study, budget=replace(study.budget, max_trials=asked.proxies, min_gain=0)
            )
            result = ended(store, study)
            if not result.record.status.is_terminal:
                raise SystemExit(
                    f"{study.name} is {result.record.status}, {result.record.message}: repeat the command"
                )
            searcher = cast("TargetSearcher", assemble(study).searcher())
            before = column("no proxies", searcher)
            searcher.tell(result.trials)
            after = column(f"with {len(result.measured)} proxies", searcher)
            report(f"{ranks} ranks, {held} at hand", searcher, [before, after], steps)
    store.close()


if __name__ == "__main__":
    main()
