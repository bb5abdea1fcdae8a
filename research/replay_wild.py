"""Cells with wild rows: one config is far ahead of all others, and what the cost model likes best
is several times too slow.

So it is on large clusters that are not quite healthy: most runs are held up by something that no
model describes. An invented cell (`replay_invented`) is changed in two ways. Of its five best
predictions that run, one is kept as it is, and all others are slowed down until the next best takes
1.4 to 2.4 times as long. One to three of the first four predictions take four times as long. A
search that reads such rows as the effect of a knob is led away from the best.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autotune.cost import estimate
from autotune.spec import ConfigTable
from tests.benchmarks.cells import Cell
from tests.benchmarks.replay_invented import invented_cells

AHEAD = (1.4, 2.4)
"""how much faster than all others the best is"""
FAR_SLOWER = 4.0
"""how much slower than it should be a wild first pick is"""
HELD_UP = 0.1
"""standard deviation of the log of what holds up the others, each by itself"""
LIKED = 5
"""the best is one of so many best predictions"""


def wild_cells(count: int, *, is_fitted: bool) -> list[Cell]:
    """So many cells, of trainers that constants were fitted to or of others."""
    return [
        _wild(cell, seed) for seed, cell in enumerate(invented_cells(count, is_fitted=is_fitted))
    ]


def _wild(cell: Cell, seed: int) -> Cell:
    draw = np.random.default_rng([seed, 13])
    configs = list(cell.rows)
    predicted = np.asarray(estimate(cell.workload, ConfigTable.of(configs)).step_time_s)
    liked = [configs[i] for i in np.argsort(predicted) if cell.rows[configs[i]].failure is None][
        :LIKED
    ]
    best = liked[draw.integers(len(liked))]
    slow = [config for config in liked[:4] if config != best][: draw.integers(1, 4)]
    rows = dict(cell.rows)
    others = {
        config: row for config, row in cell.rows.items() if config != best and row.failure is None
    }
    held_up = {
        config: row.step_time_s * float(np.exp(HELD_UP * draw.standard_normal()))
        for config, row in others.items()
    }
    level = float(draw.uniform(*AHEAD)) * cell.rows[best].step_time_s / min(held_up.values())
    for config, row in others.items():
        time = held_up[config] * max(level, 1.0)
        rows[config] = replace(row, step_time_s=time * (FAR_SLOWER if config in slow else 1.0))
    return Cell(name=f"wild {cell.name}", workload=cell.workload, rows=rows)
