"""Cells of a study's own knobs, of which the cost model knows nothing: data loader workers, bucket
sizes, kernels, layouts.

A cell has three to six knobs: numbers, words and flags. Each of them changes the log step time by
an effect of its own (numbers smoothly, words each by itself), and pairs of them by less. In every
second cell nothing else varies, so that all predictions are equal; in the others these configs are
combined with those of a cluster, whose step times are the estimate times an error of 6% of each
config's own, and which may run out of memory.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autotune.cost import estimate
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, ConfigTable, FailureKind, ParallelConfig, SpaceSpec, Workload
from autotune.spec.catalog import model
from tests.benchmarks.cells import Cell, Row

KNOBS: tuple[dict[str, tuple[bool | int | str, ...]], ...] = (
    {"num_workers": (0, 1, 2, 4, 8, 16), "bucket_mb": (1, 2, 4, 8, 16, 32, 64), "flash": (False, True)},
    {"num_workers": (0, 2, 4, 8), "bucket_mb": (1, 4, 16, 64), "flash": (False, True), "backend": ("eager", "inductor", "graphs", "aot")},
    {"layout": ("a", "b", "c", "d", "e", "f"), "kernel": ("u", "v", "w", "x", "y"), "loader": ("k", "l", "m", "n")},
    {
        "num_workers": (0, 2, 4, 8),
        "bucket_mb": (1, 4, 16, 64),
        "flash": (False, True),
        "prefetch": (1, 2, 4, 8),
        "fused": (False, True),
        "layout": ("nchw", "nhwc", "mixed"),
    },
)  # fmt: skip
"""own knobs of the cells, in turn"""
EFFECT = (0.05, 0.4)
"""standard deviation of the effect of a knob on the log step time, drawn for each cell"""
TOGETHER = 0.25
"""effect of a pair of knobs relative to that"""
ERROR, NOISE = 0.06, 0.02
"""standard deviation of the log step time of a config of the cluster, and of each row"""
MOST = 4
"""configs of the cluster that are combined with the own knobs"""


def own_knob_cells(count: int) -> list[Cell]:
    """So many cells."""
    return [_cell(seed) for seed in range(count)]


def _cell(seed: int) -> Cell:
    draw = np.random.default_rng([seed, 17])
    knobs = KNOBS[seed // 2 % len(KNOBS)]
    workload = Workload(
        model=model("gpt2-medium"),
        cluster=ClusterSpec.of("h100-sxm", num_nodes=1, gpus_per_node=8),
        seq_len=1024,
        global_batch_size=512,
        trainer="native",
    )
    plain = ConfigTable.of([ParallelConfig(dp=8, micro_batch_size=8, accumulation_steps=8)])
    if seed % 2:
        varied = {
            "tp": (1, 2, 4),
            "pp": (1, 2),
            "micro_batch_size": (1, 4, 16),
            "recompute": ("none", "full"),
        }
        whole = SearchSpace.build(workload, SpaceSpec(knobs=varied)).table
        plain = whole.take(np.sort(draw.permutation(len(whole))[:MOST]))
    predicted = estimate(workload, plain)
    log_times = np.log(np.atleast_1d(predicted.step_time_s)) + ERROR * draw.standard_normal(
        len(plain)
    )
    peaks = np.atleast_1d(predicted.peak_memory_bytes) * np.exp(
        0.05 * draw.standard_normal(len(plain))
    )
    combinations = [
        dict(zip(knobs, values, strict=True)) for values in itertools.product(*knobs.values())
    ]
    effects = _effects(
        draw,
        [len(values) for values in knobs.values()],
        [isinstance(v[0], str) for v in knobs.values()],
    )
    rows = {}
    for config, log_time, peak in zip(plain, log_times, peaks, strict=True):
        fits = peak <= 0.93 * workload.cluster.gpu.memory_bytes
        noise = NOISE * draw.standard_normal(len(combinations))
        for own, log_factor in zip(combinations, effects + noise, strict=True):
            made = replace(config, extra=own)
            rows[made] = Row(
                config=made,
                step_time_s=float(np.exp(log_time + log_factor)),
                failure=None if fits else FailureKind.OUT_OF_MEMORY,
            )
    return Cell(
        name=f"{len(knobs)} own knobs, {'some' if seed % 2 else 'nothing'} predicted, {seed}",
        workload=workload,
        rows=rows,
    )


def _effects(
    draw: np.random.Generator, sizes: list[int], are_words: list[bool]
) -> NDArray[np.float64]:
    """Log factor of the step time of each combination, in the order of `itertools.product`."""
    scale = np.exp(draw.uniform(*np.log(EFFECT)))
    places = np.array(list(itertools.product(*map(range, sizes))))
    logs = np.zeros(len(places))
    for column, (size, is_word) in enumerate(zip(sizes, are_words, strict=True)):
        x = np.linspace(0.0, 1.0, size)
        smooth = 4 * (x - draw.uniform()) ** 2 if draw.random() < 0.5 else np.exp(-4 * x)
        one = (
            draw.standard_normal(size) if is_word or size == 2 else smooth * draw.uniform(0.2, 2.0)
        )
        logs += scale * draw.choice([0.2, 1.0]) * one[places[:, column]]
        for other in range(column):
            pair = draw.standard_normal((size, sizes[other]))
            logs += TOGETHER * scale * draw.integers(2) * pair[places[:, column], places[:, other]]
    return logs
