"""What bounds the replay of few GPUs for many (`few_for_many.py`): the same figures for predictions
that are as good as any could be.

    python -m research.few_for_many_bound [--draws 400] [--seeds 2]

    fitted      the cost model with the constants that ship, which were fitted to these very rows, and no proxies
    repeats     each config's measured step as a repeat of it would come out: log-normal, as far apart as repeats of one config lie in published sweeps (their median and
                what the same config differs by on another day). Which configs fail is known
    drawn       wrong constants and proxies as in the replay, and the constants refitted by the very prior that the wrong ones were drawn by: each off by a factor of
                two, as one standard deviation, none known better. No study knows that. Which configs fail is known

error    median of |predicted / measured - 1| of the faster half        first, third    share of cells whose first pick is within 10%, and one of the first three within 5%
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from statistics import mean

import numpy as np

from autotune.cost import Calibration
from autotune.cost.calibration import refit_values
from autotune.cost.learn.correction import Posterior, Refitted, measured_workloads
from autotune.cost.learn.refit import linearized, uncertain
from autotune.cost.learn.transferred import transferred_mean
from autotune.search import Problem
from autotune.search.target_searcher import TargetSearcher
from autotune.space import SearchSpace
from autotune.spec import ConfigTable
from tests.benchmarks.few_for_many import (
    WRONG,
    Task,
    constants_in,
    constants_of,
    tasks,
    with_proxies,
)
from tests.benchmarks.few_for_many_table import KINDS

REPEATS = (0.013, 0.02, 0.04)
"""standard deviation of the log of a repeat: NeMo's median, what the search assumes, BigScience's
median"""
Figures = tuple[float, bool, bool]
EVERY_TIME_CONSTANT = (*refit_values()["spreads"], "half_factor")


def fitted(task: Task) -> Figures:
    """With the constants that ship."""
    target = task.target
    space = SearchSpace.of(target.workload, list(target.rows))
    searcher = TargetSearcher(Problem(space=space, seed=0), task.rungs[0].cluster)
    configs, standing = list(space), searcher.standing
    ran = np.array([i for i, c in enumerate(configs) if target.rows[c].failure is None])
    measured = np.array([target.rows[configs[i]].step_time_s for i in ran])
    tokens = np.asarray(space.table.global_batch_size, dtype=float)[ran] * target.workload.seq_len
    regrets = [target.regret(configs[i]) for i in standing.order[:3]]
    return _figures(tokens / np.exp(standing.log_tokens_per_s[ran]), measured, regrets)


def repeated(task: Task, sigma: float, rng: np.random.Generator) -> Figures:
    """With repeats for predictions."""
    target = task.target
    ran = [config for config, row in target.rows.items() if row.failure is None]
    measured = np.array([target.rows[config].step_time_s for config in ran])
    predicted = measured * np.exp(rng.normal(0.0, sigma, len(ran)))
    sequences = np.array([config.global_batch_size for config in ran])
    order = np.argsort(predicted / sequences)
    return _figures(predicted, measured, [target.regret(ran[i]) for i in order[:3]])


def drawn(task: Task, right: Calibration, seed: int) -> Figures:
    """With the prior that wrong constants are drawn by."""
    target = task.target
    constants = constants_in("wrong", target.workload, right, seed)
    space = SearchSpace.of(target.workload, list(target.rows))
    _, told = with_proxies(task, Problem(space=space, seed=seed, calibration=constants))
    spreads = dict.fromkeys(EVERY_TIME_CONSTANT, math.log(WRONG))
    prior = uncertain(constants, {**refit_values(), "spreads": spreads})
    known, said = linearized(prior, measured_workloads(told))
    answer = Posterior(kind="drawn", score=0.0, known=known, conditioned=said, weight=1.0)
    found = Refitted(kind="drawn", known=known, gain=0.0, posteriors=(answer,))
    ran = np.array([i for i, row in enumerate(target.rows.values()) if row.failure is None])
    measured = np.array([row.step_time_s for row in target.rows.values() if row.failure is None])
    configs = list(target.rows)
    predicted = np.exp(
        transferred_mean(target.workload, ConfigTable.of([configs[i] for i in ran]), found)
    )
    order = np.argsort(predicted / np.array([configs[i].global_batch_size for i in ran]))
    return _figures(predicted, measured, [target.regret(configs[ran[i]]) for i in order[:3]])


def _figures(predicted: np.ndarray, measured: np.ndarray, regrets: Sequence[float]) -> Figures:
    top = measured <= np.median(measured)
    return (
        float(np.median(np.abs(predicted / measured - 1.0)[top])),
        regrets[0] <= 0.10,
        min(regrets) <= 0.05,
    )


def _line(what: str, kind: str, cells: int, some: Sequence[Figures]) -> str:
    error, first, third = (mean(map(float, column)) for column in zip(*some, strict=True))
    return f"| {KINDS[kind]} | {what} | {cells} | {error:.1%} | {first:.0%} | {third:.0%} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=400, help="draws of repeats for each cell")
    parser.add_argument(
        "--seeds", type=int, default=2, help="draws of wrong constants for each cell"
    )
    options = parser.parse_args(arguments)
    print(
        "| target | predictions | cells | time error | first within 10% | one of three within 5% |"
    )
    print("|---|---|---|---|---|---|")
    right = constants_of(tasks())
    for kind in KINDS:
        some = [task for task in tasks() if task.kind == kind]
        print(
            _line(
                "constants fitted to these rows", kind, len(some), [fitted(task) for task in some]
            ),
            flush=True,
        )
        for sigma in REPEATS:
            rng = np.random.default_rng(0)
            draws = [repeated(task, sigma, rng) for task in some for _ in range(options.draws)]
            print(_line(f"repeats that differ by {sigma:.1%}", kind, len(some), draws), flush=True)
        known = [
            right[t.target.workload.model.name, t.target.workload.cluster.num_gpus] for t in some
        ]
        figures = [
            drawn(t, fit, seed)
            for t, fit in zip(some, known, strict=True)
            for seed in range(options.seeds)
        ]
        print(
            _line(
                "proxies, and the prior that wrong constants are drawn by",
                kind,
                len(figures),
                figures,
            ),
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
