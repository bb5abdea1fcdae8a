"""What bounds the replay of few GPUs for many (`few_for_many.py`): the same figures for predictions that are as good as any could be.

    python -m tests.benchmarks.few_for_many_bound [--draws 400]

    fitted      the cost model with the constants that ship, which were fitted to these very rows, and no proxies
    repeats     each config's measured step as a repeat of it would come out: log-normal, as far apart as repeats of one config lie in published sweeps (their median and
                what the same config differs by on another day). Which configs fail is known

error    median of |predicted / measured - 1| of the faster half        first, third    share of cells whose first pick is within 10%, and one of the first three within 5%
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import mean

import numpy as np

from autotune.search import Problem
from autotune.search.target_searcher import TargetSearcher
from autotune.space import SearchSpace
from tests.benchmarks.few_for_many import Task, tasks
from tests.benchmarks.few_for_many_table import KINDS

REPEATS = (0.013, 0.02, 0.04)
"""standard deviation of the log of a repeat: NeMo's median, what the search assumes, BigScience's median"""
Figures = tuple[float, bool, bool]


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


def _figures(predicted: np.ndarray, measured: np.ndarray, regrets: Sequence[float]) -> Figures:
    top = measured <= np.median(measured)
    return float(np.median(np.abs(predicted / measured - 1.0)[top])), regrets[0] <= 0.10, min(regrets) <= 0.05


def _line(what: str, kind: str, cells: int, some: Sequence[Figures]) -> str:
    error, first, third = (mean(map(float, column)) for column in zip(*some, strict=True))
    return f"| {KINDS[kind]} | {what} | {cells} | {error:.1%} | {first:.0%} | {third:.0%} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400, help="draws of repeats for each cell")
    options = parser.parse_args(arguments)
    print("| target | predictions | cells | time error | first within 10% | one of three within 5% |")
    print("|---|---|---|---|---|---|")
    for kind in ("near", "far", "layers"):
        some = [task for task in tasks() if task.kind == kind]
        print(_line("constants fitted to these rows", kind, len(some), [fitted(task) for task in some]), flush=True)
        for sigma in REPEATS:
            rng = np.random.default_rng(0)
            draws = [repeated(task, sigma, rng) for task in some for _ in range(options.draws)]
            print(_line(f"repeats that differ by {sigma:.1%}", kind, len(some), draws), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
