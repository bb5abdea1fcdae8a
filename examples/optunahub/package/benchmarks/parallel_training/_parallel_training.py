"""Published sweeps of parallel training runs as a problem for samplers.

Which configuration trains a model fastest on a number of GPUs, and which ones run at all?

`cells.csv` has one row for each configuration that was run. A cell is a model on a number of GPUs.
The knobs are the tensor parallel degree `tp`, the pipeline parallel degree `pp`, `micro_batch_size`
and the ZeRO stage `zero_stage`. The data parallel degree is the number of GPUs divided by `tp *
pp`.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

import optuna
from optunahub.benchmarks import BaseProblem

KNOBS = ("tp", "pp", "micro_batch_size", "zero_stage")
Point = tuple[int, ...]


@lru_cache(maxsize=1)
def _cells() -> dict[str, dict[Point, dict[str, str]]]:
    found: dict[str, dict[Point, dict[str, str]]] = {}
    with (Path(__file__).parent / "cells.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["cell"], {})[tuple(int(row[knob]) for knob in KNOBS)] = row
    return found


def cell_names() -> list[str]:
    """Names of all cells, e.g. `llama-8B, 32 GPUs`."""
    return list(_cells())


class Problem(BaseProblem):
    """One cell: tokens per second, to be maximized, under the constraint that the configuration
    runs."""

    def __init__(self, cell: str = "llama-8B, 32 GPUs") -> None:
        """`cell`: one of `cell_names()`."""
        if cell not in _cells():
            raise ValueError(f"there is no cell {cell!r}; use one of: {'; '.join(_cells())}")
        self.cell = cell
        self._rows = _cells()[cell]

    @property
    def search_space(self) -> dict[str, optuna.distributions.BaseDistribution]:
        """The knobs, each with the values that occur in the cell."""
        values = [sorted({point[i] for point in self._rows}) for i in range(len(KNOBS))]
        return {
            knob: optuna.distributions.CategoricalDistribution(v)
            for knob, v in zip(KNOBS, values, strict=True)
        }

    @property
    def directions(self) -> list[optuna.study.StudyDirection]:
        """Tokens per second are maximized."""
        return [optuna.study.StudyDirection.MAXIMIZE]

    @property
    def best_value(self) -> float:
        """Tokens per second of the fastest configuration in the cell."""
        return max(float(row["tokens_per_s"]) for row in self._rows.values() if row["tokens_per_s"])

    def evaluate(self, params: dict[str, Any]) -> float:
        """Measured tokens per second of the whole job, or 0 for a configuration that did not
        run."""
        row = self._row(params)
        return float(row["tokens_per_s"]) if row and row["tokens_per_s"] else 0.0

    def evaluate_constraints(self, params: dict[str, Any]) -> dict[str, float]:
        """Values above zero are violations: `measured` if the point is not in the sweep, `runs` if
        it failed there."""
        row = self._row(params)
        return {"measured": -1.0 if row else 1.0, "runs": 1.0 if row and row["failure"] else -1.0}

    def regret(self, params: dict[str, Any]) -> float:
        """Fraction of the best throughput that a configuration falls short by, 0 to 1."""
        return 1.0 - self.evaluate(params) / self.best_value

    def _row(self, params: dict[str, Any]) -> dict[str, str] | None:
        return self._rows.get(tuple(int(params[knob]) for knob in KNOBS))
