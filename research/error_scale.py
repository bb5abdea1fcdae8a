"""How wide the errors of a study are: what sources that nothing was fitted to, and files that were
not read, say of m and c of `autotune.cost.learn.correction`.

    python -m research.error_scale        a minute of one core

Each source is predicted by constants without it. Trials are rows of one cluster and software (of
files: of one study), each in turn or `DRAWS` sets of three, and what they leave of the other rows
is judged:

    density        mean log density of what is left, by Student's t of that m and c; normal: with widths that trials do not change
    inside         share of the rows in the 90% interval, after one and after three trials

Every source counts once. Left out: the density of each source by the m and c that suit the others
best. The second table has the median error of what is left, and the share inside by a normal and as
it ships, by group of sources.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

from autotune.cost import Calibration, calibration_for
from autotune.cost.calibration import refit_values
from autotune.cost.learn.correction import DEGREES, SCALE, learnt
from autotune.cost.learn.refit import uncertain
from research.fit_cost_model import unread_rows
from research.held_out import FREE, Judged, judged
from research.study_trials import studies
from research.unseen import unread_of
from tests.benchmarks.accuracy_page import CONSTANTS, timed_files
from tests.benchmarks.published.unseen import READ, unseen

TRIALS = (1, 3)
DRAWS = 20
MOST = 30
"""studies of a file that are looked at"""
CHOICES = [(m, c) for m in (1.5, 2.0, 3.0, 4.0, 6.0, 12.0) for c in (0.4, 0.5, 0.6, 0.7, 0.8, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What trials leave of other rows; arrays of shape (n,)."""

    error: np.ndarray
    sigma: np.ndarray
    """its standard deviation by a normal"""
    squares: float
    trials: int

    def by_t(self, m: float, c: float) -> tuple[np.ndarray, np.ndarray]:
        """Log densities, and whether the rows are inside."""
        degrees = m + self.trials
        scaled = self.sigma * np.sqrt((c * m + self.squares) / degrees)
        away = self.error / scaled
        return t.logpdf(away, degrees) - np.log(scaled), np.abs(away) <= t.ppf(0.95, degrees)

    def by_normal(self) -> tuple[np.ndarray, np.ndarray]:
        """The same with widths that the trials' distance does not change."""
        away = self.error / self.sigma
        return norm.logpdf(away) - np.log(self.sigma), np.abs(away) <= norm.ppf(0.95)


def sources() -> Iterator[tuple[str, str, Judged, list[np.ndarray]]]:
    """Every source: its group, its name, its rows, and those that stand for a study."""
    for batch in READ:
        for name, blocks in unseen("none", batch).items():
            timed = [b for b in blocks if np.isfinite(b.tokens_per_s_per_gpu).any()]
            if timed:
                rows = judged(
                    [(b, calibration_for(b.workload, known=unread_of(name))) for b in timed]
                )
                yield (
                    f"batch {batch}",
                    name,
                    rows,
                    [
                        np.flatnonzero(rows.where == where)
                        for where in sorted(set(rows.where.tolist()))
                    ],
                )
    shipping = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    for name, rows in unread_rows(shipping, timed_files(), 1)[1].items():
        found = studies(rows, 1)[:MOST]
        yield (
            "files",
            name,
            rows,
            [s[rows.slowness[s] <= 2.0 * rows.slowness[s].min()] for s in found],
        )


def left_after(rows: Judged, groups: list[np.ndarray], trials: int) -> list[Left]:
    """What that many trials leave, for every set of trials of every group."""
    prior, rng = uncertain(Calibration(), refit_values(), names=FREE), np.random.default_rng(trials)
    out = []
    for group in (g for g in groups if len(g) > trials):
        draws = [np.array([row]) for row in group]
        if trials > 1:
            draws = [rng.choice(group, trials, replace=False) for _ in range(DRAWS)]
        for tried in draws:
            rest = np.setdiff1d(group, tried)
            known = learnt(rows.derivatives.take(tried), rows.error[tried], prior)
            if known is not None:
                center, sigma, _ = known.errors_of(rows.derivatives.take(rest))
                out.append(Left(error=rows.error[rest] - center, sigma=sigma, squares=known.squares, trials=len(known.rows)))  # fmt: skip
    return out


def _figures(left: list[Left]) -> np.ndarray:
    """Mean density and share inside by each choice, and last by a normal, shape (choices + 1,
    2)."""
    every = [[one.by_t(m, c) for one in left] for m, c in CHOICES] + [
        [one.by_normal() for one in left]
    ]
    return np.array(
        [[np.mean(np.concatenate(column)) for column in zip(*some, strict=True)] for some in every]
    )


def _inside(left: list[Left]) -> tuple[float, float]:
    """Shares inside by a normal and as it ships."""
    shares = [[one.by_normal()[1] for one in left], [one.by_t(DEGREES, SCALE)[1] for one in left]]
    return float(np.mean(np.concatenate(shares[0]))), float(np.mean(np.concatenate(shares[1])))


def main() -> int:
    """Print the table and what is chosen when each source in turn is left out."""
    found: dict[int, dict[str, np.ndarray]] = {n: {} for n in TRIALS}
    by_group: dict[tuple[str, int], list[list[float]]] = {}
    for group, name, rows, studied in sources():
        for n in TRIALS:
            left = left_after(rows, studied, n)
            if left:
                found[n][name] = _figures(left)
                size = float(
                    np.median(np.abs(np.expm1(-np.concatenate([one.error for one in left]))))
                )
                by_group.setdefault((group, n), []).append([size, *_inside(left)])
    means = {n: np.mean(list(of.values()), axis=0) for n, of in found.items()}
    print("| m | c | density | inside after one | after three |\n|---|---|---|---|---|")
    for k, (m, c) in enumerate([*CHOICES, ("normal", "")]):
        density = np.mean([means[n][k, 0] for n in TRIALS])
        chosen = " (ships)" if (m, c) == (DEGREES, SCALE) else ""
        print(
            f"| {m} | {c}{chosen} | {density:.3f} | {means[1][k, 1]:.1%} | {means[3][k, 1]:.1%} |"
        )
    print(
        "| sources | number | trials | median | inside, normal | inside |\n|---|---|---|---|---|---|"
    )
    for (group, n), lines in sorted(by_group.items()):
        print(
            f"| {group} | {len(lines)} | {n} | "
            + " | ".join(f"{x:.1%}" for x in np.mean(lines, axis=0))
            + " |"
        )
    names = sorted(set().union(*found.values()))
    of_source = {s: [of[s] for of in found.values() if s in of] for s in names}
    left_out, picks = [], []
    for name in names:
        others = np.mean([f[:-1, 0] for s in names if s != name for f in of_source[s]], axis=0)
        picks.append(CHOICES[int(np.argmax(others))])
        left_out += [f[int(np.argmax(others)), 0] for f in of_source[name]]
    normal = np.mean([f[-1, 0] for of in of_source.values() for f in of])
    print(
        f"left out: density {np.mean(left_out):.3f}, normal {normal:.3f}; chosen {sorted(set(picks))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
