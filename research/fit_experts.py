"""Held-out step times of models with experts, by model and GPU type.

    python -m research.fit_experts

Each model's rows are predicted with constants that were fitted without any row of that model,
before any trial (`held_out`). Of the constants only four are of experts or casts: `EXPERTS` and
`cast_bytes`; the rest is shared with dense models, whose rows are in the same fit.

    median, p90   of |predicted / measured - 1| of the step time      bias   median of predicted / measured
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from research.held_out import Fold, by_model, held_out
from research.time_fit import Pair, errors_of, pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsLine:
    """The held-out error of some rows."""

    model: str
    gpu: str
    ratio: np.ndarray
    """predicted / measured step time of each row"""

    def __str__(self) -> str:
        error = np.abs(self.ratio - 1.0)
        figures = (
            f"{np.median(error):.1%} | {np.quantile(error, 0.9):.1%} | {np.median(self.ratio):.2f}"
        )
        return f"| {self.model} | {self.gpu} | {len(error)} | {figures} |"


def has_experts(pair: Pair) -> bool:
    """Whether some of its rows are of a model with experts."""
    return any(b.workload.model.num_experts for b in pair.blocks)


def lines_of(folds: Iterable[Fold]) -> list[ExpertsLine]:
    """One line for each model with experts and GPU type, and one for all of them."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for block, constants in folds:
        if block.workload.model.num_experts:
            key = (block.workload.model.name, block.workload.cluster.gpu.name)
            ratios.setdefault(key, []).extend(np.exp(errors_of([block])(constants)).tolist())
    lines = [
        ExpertsLine(model=model, gpu=gpu, ratio=np.array(r))
        for (model, gpu), r in sorted(ratios.items())
    ]
    return [
        *lines,
        ExpertsLine(model="all", gpu="", ratio=np.concatenate([line.ratio for line in lines])),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit without each model in turn, and print the table."""
    folds: list[Fold] = []
    for pair in filter(has_experts, pairs()):
        folds += held_out(pair, by_model)
    print("| model | GPU | rows | median | p90 | bias |\n|---|---|---|---|---|---|")
    print("\n".join(map(str, lines_of(folds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
