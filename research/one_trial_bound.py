"""What one trial can teach at best about the other configs of a study, by the form that the cost
model's errors have.

    python -m research.one_trial_bound        2 minutes of one core

Every file is predicted by the constants that ship without it. Errors are medians over the rows of a
study within twice its best, after one drawn trial (`study_trials`).

    before         without a trial
    factor         less the median error of their study: what one factor for each study would leave, were it known
    pair           as far apart as two rows of a study are: what the trial's error leaves where it is taken over whole
    ships          with the prior that ships
    all, own       with the prior's numbers chosen to make these very errors least, over all files and over the file alone: spread of the level, of the constants
                   and of own errors, their part that is a config's alone, its length and what equal work shares. No prior of this form leaves less
    trend          mean size of the rows' errors less their study's median, and the same less slopes by knob that the other files' rows have (ridge regression
                   with the penalty that suits all files best; each file counts alike, but at most as `ENOUGH` rows). What falls could be learnt from other files
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from research.error_fit import ENOUGH
from research.fit_cost_model import unread_rows
from research.held_out import NEAR, Judged
from research.study_trials import after_trials, studies
from tests.benchmarks.accuracy_page import CONSTANTS, timed_files

FACTORS = (0.1, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
"""multiples of a number of the prior that are tried"""
ROUNDS = 2
"""times that each number is chosen anew, given the others"""
CLIP = 0.25
"""errors beyond this, in logarithms, count as this in the slopes: a run that went wrong tells no
trend"""
PENALTIES = (0.03, 0.3, 1.0, 3.0, 10.0)
NUMBERS = ("level_sigma", "spreads", "own_sigma", "alone_sigma", "length", "same_work")
HEADER = ("file", "studies", "before", "factor", "pair", "ships", "all", "own", "trend")
Chosen = Mapping[str, float]
"""multiple of each of the prior's numbers"""


def after_one(rows: Judged, known: Mapping[str, Any], chosen: Chosen) -> float:
    """Median error after one drawn trial with these multiples of the prior's numbers."""
    own = dict(known["own_error"])
    for name in ("alone_sigma", "length", "same_work"):
        own[name] *= chosen[name]
    own["same_work"] = min(own["same_work"], 0.95)
    prior = {
        "level_sigma": known["level_sigma"] * chosen["level_sigma"],
        "spreads": {n: s * chosen["spreads"] for n, s in known["spreads"].items()},
        "own_error": own,
    }
    derivatives = replace(
        rows.derivatives, own_sigma=rows.derivatives.own_sigma * chosen["own_sigma"]
    )
    return after_trials(replace(rows, sensitivity=derivatives), 1, prior).median


def least(error: Callable[[Chosen], float]) -> Chosen:
    """The multiples that leave the least error, one number after the other."""
    chosen = dict.fromkeys(NUMBERS, 1.0)
    for _ in range(ROUNDS):
        for name in NUMBERS:
            chosen[name] = min(FACTORS, key=lambda f: (error({**chosen, name: f}), abs(np.log(f))))
    return chosen


def within(rows: Judged) -> list[np.ndarray]:
    """The rows within twice the best of each study that has more than one."""
    return [s[rows.slowness[s] <= NEAR * rows.slowness[s].min()] for s in studies(rows, 1)]


def centered(rows: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Knobs and errors of these rows, less the mean and the median of their study."""
    own = [(rows.derivatives.points[s], rows.error[s]) for s in within(rows)]
    return np.concatenate([p - p.mean(axis=0) for p, _ in own]), np.concatenate(
        [e - np.median(e) for _, e in own]
    )


def trends(files: Mapping[str, Judged]) -> dict[str, tuple[float, float]]:
    """Mean size of the errors less their study's median, and less the slopes of the other files
    too."""
    every = {n: centered(rows) for n, rows in files.items()}
    found = {
        penalty: {n: _without_slopes(every, n, penalty) for n in files} for penalty in PENALTIES
    }
    best = min(found.values(), key=lambda left: float(np.mean(list(left.values()))))
    return {n: (float(np.mean(np.abs(every[n][1]))), best[n]) for n in files}


def _without_slopes(
    every: Mapping[str, tuple[np.ndarray, np.ndarray]], name: str, penalty: float
) -> float:
    others = [v for n, v in every.items() if n != name]
    knobs = np.concatenate([p for p, _ in others])
    errors = np.clip(np.concatenate([e for _, e in others]), -CLIP, CLIP)
    weights = np.concatenate([np.full(len(e), min(1.0, ENOUGH / len(e))) for _, e in others])
    scale = np.sqrt(np.average(knobs**2, axis=0, weights=weights)) + 1e-9
    scaled = knobs / scale
    normal = (scaled * weights[:, None]).T @ scaled / weights.sum() + penalty * np.eye(len(scale))
    slopes = np.linalg.solve(normal, (scaled * weights[:, None]).T @ errors / weights.sum()) / scale
    # of a knob that no other file moves nothing is known
    own, left = every[name]
    left = left - own @ np.where(scale > 1e-6, slopes, 0.0)
    return float(np.mean(np.abs(left - np.median(left))))


def _pair(rows: Judged) -> float:
    """Median over the studies' rows of how far apart two of them are; each study counts by its
    rows."""
    sizes, weights = [], []
    for study in within(rows):
        error = rows.error[study]
        apart = np.subtract.outer(error, error)[~np.eye(len(error), dtype=bool)]
        sizes.append(np.abs(np.expm1(apart)))
        weights.append(np.full(len(apart), 1.0 / len(error)))
    order = np.argsort(every := np.concatenate(sizes))
    below = np.cumsum(np.concatenate(weights)[order])
    return float(every[order][np.searchsorted(below, 0.5 * below[-1])])


def main() -> int:
    """Print the table and the numbers that were chosen for all files."""
    shipped = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    known = shipped["refit"]
    _, every = unread_rows(shipped, timed_files(), 1)
    files = {n: rows for n, rows in every.items() if studies(rows, 1)}
    of_all = least(
        lambda chosen: float(np.mean([after_one(rows, known, chosen) for rows in files.values()]))
    )
    slopes = trends(files)
    figures: list[Sequence[float]] = []
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    for name, rows in files.items():
        studied = [rows.error[s] for s in within(rows)]
        own = least(lambda chosen, rows=rows: after_one(rows, known, chosen))  # type: ignore[misc]
        figures.append(
            (
                _median(np.concatenate(studied)), _median(np.concatenate([e - np.median(e) for e in studied])), _pair(rows),
                *(after_one(rows, known, c) for c in (dict.fromkeys(NUMBERS, 1.0), of_all, own)),
            )
        )  # fmt: skip
        before, after = slopes[name]
        cells = [
            *(f"{100 * f:.1f}%" for f in figures[-1]),
            f"{100 * before:.1f}% to {100 * after:.1f}%",
        ]
        print(f"| {name} | {len(studied)} | " + " | ".join(cells) + " |", flush=True)
    cells = [*(f"{100 * f:.1f}%" for f in np.mean(figures, axis=0)), ""]
    print("| mean | | " + " | ".join(cells) + " |")
    print("chosen for all files:", ", ".join(f"{n} x {f:g}" for n, f in of_all.items()))
    return 0


def _median(errors: np.ndarray) -> float:
    return float(np.median(np.abs(np.expm1(-errors))))


if __name__ == "__main__":
    sys.exit(main())
