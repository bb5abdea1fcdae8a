"""Tight cells: many configs need about as much memory as the GPU has, under trainers whose peaks no
constant was fitted to.

The peak of each config is the estimate times one factor for the whole cell and one of its own, as
`shared_memory_errors` finds them in published sources; the same for the step time.
"""

from __future__ import annotations

import numpy as np

from autotune.cost import estimate
from autotune.errors import AutotuneError
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, FailureKind, SpaceSpec, Workload
from tests.benchmarks.cells import Cell, Row
from tests.benchmarks.replay_invented import MODELS

PEAK_ERRORS, TIME_ERRORS = (0.15, 0.06), (0.2, 0.1)
"""standard deviations of the logs of the shared factor and of the own one"""
TRAINERS = ("hf_trainer", "deepspeed", "accelerate", "lightning", "torchtitan")
UNSURE = (0.15, 0.85)
"""P(OOM) of a config that may or may not fit"""
KNOBS = {"micro_batch_size": (1, 2, 4, 8), "recompute": ("none", "full"), "zero_stage": (1, 2, 3)}


def tight_cells(count: int) -> list[Cell]:
    """So many cells on one node of eight GPUs."""
    return [_cell(seed) for seed in range(count)]


def _cell(seed: int) -> Cell:
    draw = np.random.default_rng([seed, 77])
    while True:
        try:
            made = _tried(draw, seed)
        except AutotuneError:  # nothing of that space is legal
            continue
        if made is not None:
            return made


def _tried(draw: np.random.Generator, seed: int) -> Cell | None:
    """A cell; None where few of its configs are in doubt, or next to none runs."""
    model = MODELS[draw.integers(len(MODELS))]
    gpu = str(draw.choice(["a100-40gb", "a100-80gb", "h100-sxm", "l40s"]))
    workload = Workload(
        model=model,
        cluster=ClusterSpec.of(gpu, num_nodes=1, gpus_per_node=8),
        seq_len=int(draw.choice([2048, 4096, 8192])),
        global_batch_size=64,
        trainer=str(draw.choice(TRAINERS)),
    )
    knobs = {**KNOBS, "tp": (1, 2) if workload.trainer == "torchtitan" else (1,), "pp": (1,)}
    space = SearchSpace.build(workload, SpaceSpec(knobs=knobs))
    predicted = estimate(workload, space.table)
    risk = np.asarray(predicted.oom_probability)
    if model.num_experts or ((risk > UNSURE[0]) & (risk < UNSURE[1])).sum() < 4:
        return None
    peaks = np.asarray(predicted.peak_memory_bytes) * _factors(draw, PEAK_ERRORS, len(space))
    times = np.asarray(predicted.step_time_s) * _factors(draw, TIME_ERRORS, len(space))
    exhausted = peaks > workload.cluster.gpu.memory_bytes * draw.uniform(0.92, 0.98)
    if (~exhausted).sum() < 2:
        return None
    rows = {
        space[i]: Row(
            config=space[i],
            step_time_s=float(times[i]),
            peak_memory_bytes=None if exhausted[i] else float(peaks[i]),
            failure=FailureKind.OUT_OF_MEMORY if exhausted[i] else None,
        )
        for i in range(len(space))
    }
    return Cell(
        name=f"tight {model.name} on {gpu}, {workload.trainer}, {seed}",
        workload=workload,
        rows=rows,
    )


def _factors(draw: np.random.Generator, errors: tuple[float, float], count: int) -> np.ndarray:
    shared, own = errors
    return np.exp(shared * draw.standard_normal() + own * draw.standard_normal(count))
