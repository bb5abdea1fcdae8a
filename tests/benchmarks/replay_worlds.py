"""Simulated cells: the worlds of `train_policy` as cells, so that any searcher can be replayed on
them.

Outcomes follow the cost model with all constants perturbed and more noise than repeats show.
Predictions use the constants that ship, with their error bars. So searchers can be compared, and
their priors chosen, without the published measurements.
"""

from __future__ import annotations

import numpy as np

from autotune.spec import FailureKind
from research.train_policy import World, draw
from tests.benchmarks.cells import Cell, Row

FIRST = 1_000_000
"""Seed of the first: far from those that the policy was trained on."""


def simulated_cells(count: int) -> list[Cell]:
    """So many worlds, as cells."""
    return [_cell(f"world {seed}", draw(seed)) for seed in range(FIRST, FIRST + count)]


def _cell(name: str, world: World) -> Cell:
    workload, rows = world.space.workload, {}
    for i in range(len(world.space)):
        config = world.space[i]
        cause = FailureKind.OUT_OF_MEMORY if world.out_of_memory[i] else FailureKind.ERROR
        rows[config] = Row(
            config=config,
            step_time_s=config.global_batch_size * workload.seq_len / float(np.exp(world.score[i])),
            peak_memory_bytes=float(np.exp(world.log_peak_ratio[i]))
            * workload.cluster.gpu.memory_bytes,
            failure=None if world.runs[i] else cause,
        )
    return Cell(name=name, workload=workload, rows=rows)
