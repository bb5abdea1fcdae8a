"""Held-out predictions: every published row with constants that were fitted without its model, its
GPU count, or its cluster and trainer.

A *fold* is a block of rows with the constants that predict them. A `Judged` holds the rows of many
folds with their errors:

    error   log(measured / predicted step time)      config_sigma, level_sigma   both parts of the interval

What trials of a study do to the errors: `study_trials.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.estimator import Sensitivity, sensitivity
from autotune.cost.learn.uncertainty import Z90, config_sigma, moving_share
from autotune.space import distance_from_plain
from research.constants_document import document
from research.time_fit import SPREAD, Pair, fit_time
from tests.benchmarks.published import FILES, Block

NEAR = 2.0
"""rows within this many times their cell's best are those that a search chooses among"""
FREE = (*SPREAD, "attention_limit")
"""constants that differ between clusters"""
Fold = tuple[Block, Calibration]
Fitted = dict[str, Calibration]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows with a measured speed and their predictions; arrays of shape (N,)."""

    where: np.ndarray
    """cluster and software"""
    model: np.ndarray
    seq_len: np.ndarray
    gpus: np.ndarray
    cell: np.ndarray
    study: np.ndarray
    """workload: model, sequence length, cluster, GPU count and global batch"""
    config: np.ndarray
    measured_s: np.ndarray
    predicted_s: np.ndarray
    config_sigma: np.ndarray
    level_sigma: np.ndarray
    moving: np.ndarray
    """share of communication and bubbles in the step"""
    expert_sigma: np.ndarray
    """part of config_sigma of models with experts"""
    sensitivity: Sensitivity | None
    """how the prediction depends on the constants `FREE`; None where it was not asked for"""
    slowness: np.ndarray
    """how many times slower per GPU than the fastest row of the cell"""
    source: np.ndarray
    """where the constants come from"""
    plainness: np.ndarray
    """how far the config is from a study's default config; shape (N, 6), see
    `distance_from_plain`"""

    @property
    def error(self) -> np.ndarray:
        """log(measured / predicted)."""
        return np.asarray(np.log(self.measured_s / self.predicted_s))

    @property
    def derivatives(self) -> Sensitivity:
        """The sensitivity of rows for which it was asked."""
        if self.sensitivity is None:
            raise ValueError("these rows were judged without their sensitivity")
        return self.sensitivity

    @property
    def is_inside(self) -> np.ndarray:
        """Whether the row lies in its interval before any trial."""
        return np.asarray(np.abs(self.error) <= Z90 * np.hypot(self.config_sigma, self.level_sigma))

    def take(self, index: np.ndarray) -> Judged:
        """The rows that `index` names."""
        columns = {
            n: getattr(self, n)[index] for n in self.__dataclass_fields__ if n != "sensitivity"
        }
        return Judged(
            **columns,
            sensitivity=None if self.sensitivity is None else self.sensitivity.take(index),
        )

    def near(self) -> Judged:
        """The rows that a search chooses among."""
        return self.take(self.slowness <= NEAR)

    def __len__(self) -> int:
        return len(self.measured_s)


def by_model(b: Block) -> np.ndarray:
    """The model of each row."""
    return np.full(len(b.table), b.workload.model.name)


def by_gpus(b: Block) -> np.ndarray:
    """The GPU count of each row."""
    return np.asarray(b.table.world_size)


def held_out(
    pair: Pair, key: Callable[[Block], np.ndarray], run: Callable[..., Iterable[Calibration]] = map
) -> list[Fold]:
    """Every row of a pair once, with time constants that were fitted without any row of the same
    `key`; `run` is `map` or a pool's."""
    values = sorted({v for b in pair.blocks for v in key(b).tolist()})
    rests = [
        [b.take(rows) for b in pair.blocks if len(rows := np.flatnonzero(key(b) != v))]
        for v in values
    ]
    kept = [(value, rest) for value, rest in zip(values, rests, strict=True) if rest]
    out = []
    fits = run(fit_time, [pair] * len(kept), [rest for _, rest in kept])
    for (value, _), constants in zip(kept, fits, strict=True):
        out += [
            (b.take(rows), constants)
            for b in pair.blocks
            if len(rows := np.flatnonzero(key(b) == value))
        ]
    return out


def without_file(
    pairs: Sequence[Pair], fitted: Fitted, name: str, old: Mapping[str, Any]
) -> dict[str, Any]:
    """The constants as they would be had the file never been read: pairs with rows of it are fitted
    to their other rows, or are not there."""
    clusters = {b.where for b in FILES[name]()}
    rest: Fitted = {}
    for pair in pairs:
        blocks = [b for b in pair.blocks if b.where not in clusters]
        if len(blocks) == len(pair.blocks):
            rest[pair.name] = fitted[pair.name]
        elif blocks:
            rest[pair.name] = fit_time(pair, blocks)
    return document(rest, old)


def folds_of(blocks: Sequence[Block], known: Mapping[str, Any]) -> list[Fold]:
    """The blocks with what these constants say of their workloads."""
    return [(b, calibration_for(b.workload, known=known)) for b in blocks]


def judged(folds: Sequence[Fold], *, with_sensitivity: bool = True) -> Judged:
    """The rows of the folds whose speed was measured. `with_sensitivity`: as trials need it; it
    takes twenty times as long."""
    best: dict[str, float] = defaultdict(float)
    for b, _ in folds:
        for name, speed in zip(_cells(b), b.tokens_per_s_per_gpu, strict=True):
            if np.isfinite(speed):
                best[name] = max(best[name], float(speed))
    parts: list[dict[str, np.ndarray]] = []
    sensitivities: list[Sensitivity] = []
    numbers: dict[str, int] = {}
    for whole, constants in folds:
        b = whole.take(np.flatnonzero(~whole.failed & np.isfinite(whole.tokens_per_s_per_gpu)))
        if not len(b.table):
            continue
        e = estimate(b.workload, b.table, calibration=constants)
        n = len(b.table)
        experts = b.workload.model.num_experts > 0
        number = numbers.setdefault(repr(b.workload), len(numbers))
        if with_sensitivity:
            sensitivities.append(sensitivity(b.workload, b.table, constants, FREE, number))
        parts.append(
            {
                "where": np.full(n, b.where, dtype=object),
                "model": np.full(n, b.workload.model.name, dtype=object),
                "seq_len": np.full(n, b.workload.seq_len),
                "gpus": np.asarray(b.table.world_size),
                "cell": np.array(_cells(b), dtype=object),
                "study": np.array(_studies(b), dtype=object),
                "config": np.array([str(b.table[i]) for i in range(n)], dtype=object),
                "measured_s": b.step_time_s,
                "predicted_s": np.asarray(e.step_time_s),
                "config_sigma": config_sigma(e),
                "level_sigma": np.asarray(e.level_sigma),
                "moving": moving_share(e.time_parts_s),
                "expert_sigma": np.full(n, constants.expert_sigma if experts else 0.0),
                "slowness": np.array([best[name] for name in _cells(b)]) / b.tokens_per_s_per_gpu,
                "source": np.full(n, constants.source, dtype=object),
                "plainness": distance_from_plain(b.table, "bf16").T,
            }
        )
    columns = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return Judged(
        **columns, sensitivity=Sensitivity.joined(sensitivities) if with_sensitivity else None
    )


def _cells(b: Block) -> list[str]:
    """Names of the rows' cells: a search chooses for one model and sequence length on one
    cluster."""
    return [f"{b.where}; {b.workload.model.name}; {b.workload.seq_len}; {cell}" for cell in b.cell]


def _studies(b: Block) -> list[str]:
    """Names of the rows' studies: a study's cluster is of one size, and its global batch is
    given."""
    sizes = zip(b.table.world_size, b.table.global_batch_size, strict=True)
    return [
        f"{cell}; {int(gpus)} GPUs; batch {int(batch)}"
        for cell, (gpus, batch) in zip(_cells(b), sizes, strict=True)
    ]


def levels_of(rows: Judged) -> dict[str, float]:
    """The level of each cluster: the median error of its rows that a search chooses among."""
    near = rows.near()
    return {
        w: float(np.median(near.error[near.where == w])) for w in sorted(set(near.where.tolist()))
    }


def kind_of(source: str) -> str:
    """What constants of that source know: a fitted pair, pooled hardware and trainer, any trainer,
    or a datasheet."""
    if not source.startswith("not fitted to "):
        return "pair"
    if "(datasheet peaks, " in source:
        return "datasheet"
    return "any trainer" if "overheads from other GPUs and trainers" in source else "pooled"
