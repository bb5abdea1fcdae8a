"""Large cells of near equals: thousands of configs whose step times are the estimate times an error
of each config's own.

Nothing can be learnt there: the error of one config says nothing about another's. Many configs are
nearly as good as the best, and some that were not tried are always a little better. A search must
notice when further trials are not worth their time. The errors are log-normal, 10% each.
"""

from __future__ import annotations

import numpy as np

from autotune.cost import estimate
from autotune.schema import parse_space
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, FailureKind, Workload
from autotune.spec.catalog import model
from tests.benchmarks.cells import Cell, Row

ERROR = 0.1
"""standard deviation of the log step time about the estimate"""
LEAST, MOST = 2000, 4000
"""configs of a cell"""
MODELS = ("gpt2-medium", "gpt2-large", "gpt2-xl", "llama-1b", "llama-3b", "llama-8b")
GPUS = ("a100-80gb", "h100-sxm", "h200-sxm", "b200-sxm")


def near_equal_cells(count: int) -> list[Cell]:
    """So many cells."""
    return [_cell(seed) for seed in range(count)]


def _cell(seed: int) -> Cell:
    draw = np.random.default_rng([seed, 11])
    while True:
        nodes = int(draw.choice([1, 1, 2, 4]))
        cluster = ClusterSpec.of(str(draw.choice(GPUS)), num_nodes=nodes, gpus_per_node=8)
        workload = Workload(
            model=model(str(draw.choice(MODELS))),
            cluster=cluster,
            seq_len=int(draw.choice([1024, 2048])),
            global_batch_size=int(draw.choice([256, 512, 1024])),
            trainer="native",
        )
        space = SearchSpace.build(
            workload, parse_space("dense-single-node" if nodes == 1 else "dense-multi-node")
        )
        if len(space) >= LEAST:
            break
    kept = np.sort(draw.permutation(len(space))[:MOST])
    table = space.table.take(kept)
    predicted = estimate(workload, table)
    times = np.asarray(predicted.step_time_s) * np.exp(ERROR * draw.standard_normal(len(table)))
    peaks = np.asarray(predicted.peak_memory_bytes) * np.exp(
        0.03 * draw.standard_normal(len(table))
    )
    space, rows = SearchSpace.of(workload, table), {}
    for i in range(len(space)):
        fits = peaks[i] <= 0.95 * cluster.gpu.memory_bytes
        rows[space[i]] = Row(
            config=space[i],
            step_time_s=float(times[i]),
            peak_memory_bytes=float(peaks[i]) if fits else None,
            failure=None if fits else FailureKind.OUT_OF_MEMORY,
        )
    return Cell(
        name=f"{workload.model.name} on {cluster.name}, {seed}", workload=workload, rows=rows
    )
