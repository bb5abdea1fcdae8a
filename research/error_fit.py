"""How wrong the cost model is on a cluster that it was not fitted on, as numbers: the prior of
`autotune.cost.learn.refit`.

    spread of a constant    from the pairs of GPU type and trainer that determine it: standard deviation of its log between pairs, and the width of the
                            fit's own prior, which counts as much as `PRIOR_PAIRS` pairs (inverse chi-squared; Gelman et al., section 2.6)
    four numbers            level, own error of pooled constants, the same of communication, and what a config has alone: largest likelihood of the
                            errors of files that were not read, and of rows whose model was held out about the level of their cluster (what is left
                            where a cluster is known), with log-normal priors of spread `LOOSE`
    two are chosen          length of the own error, and what workloads share of it: the likelihood hardly depends on them (a length of 4 to 20, a share
                            of 0.5 to 0.8)
    one is chosen           what configs of the same kernels share (q of `own_error`): errors of the same tensor degree and micro-batch on other numbers of GPUs
                            correlate by 0.96 in vTrain's sweep (0.93 with other depths) and by 0.42 in nanotron's, 0 at 16 times the GPUs

Every file counts alike, but at most as `ENOUGH` rows. A number for one file is fitted to the other
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import minimize

from autotune.cost import Calibration
from autotune.cost.estimator import Sensitivity
from autotune.cost.learn.refit import LEAST_SIGMA, OwnError
from research.held_out import Judged, kind_of, levels_of
from research.time_fit import SPREAD, Pair

PRIOR_PAIRS = 4
"""pairs that the width of the fit's prior counts as"""
ENOUGH = 40
"""rows that a file counts as at most: its rows resemble each other"""
ROWS = 60
"""rows of a cluster that are looked at, evenly over the file"""
START = {"level": 0.12, "time": 0.14, "comm": 0.15, "alone": 0.05}
LOOSE = 0.7
"""standard deviation of the log of each about `START`, before any row"""
LENGTH, BETWEEN_WORKLOADS, SAME_WORK = 8.0, 0.6, 0.7
STEPS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How wrong the cost model is."""

    level_sigma: float
    """of the level that no constant explains"""
    time_sigma: float
    """own error of a config with pooled constants"""
    comm_sigma: float
    """the same of its share of communication and bubbles"""
    own_error: OwnError
    spreads: Mapping[str, float]
    """standard deviation of the log of each constant between clusters"""
    shared_sigma: float
    """root mean square of level and constants together over the rows, every file alike"""

    @property
    def values(self) -> dict[str, Any]:
        """As `constants.json` keeps them."""
        own = {n: float(f"{getattr(self.own_error, n):.3g}") for n in OwnError.__dataclass_fields__}
        spreads = {n: float(f"{s:.3g}") for n, s in self.spreads.items()}
        return {
            "level_sigma": float(f"{self.level_sigma:.3g}"),
            "own_error": own,
            "spreads": spreads,
        }


def spreads_of(fitted: Mapping[str, Calibration], pairs: Sequence[Pair]) -> dict[str, float]:
    """Spread of each constant between clusters, from the pairs whose rows determine it."""
    free = {p.name: p.free for p in pairs}
    out = {}
    for name, width in SPREAD.items():
        logs = np.log([getattr(c, name) for pair, c in fitted.items() if name in free[pair]])
        squares = float(((logs - logs.mean()) ** 2).sum()) if len(logs) > 1 else 0.0
        out[name] = float(
            np.sqrt((PRIOR_PAIRS * width**2 + squares) / (PRIOR_PAIRS + max(len(logs) - 1, 0)))
        )
    return out


def own_error(alone_sigma: float) -> OwnError:
    """The own error, of which that much is a config's alone."""
    return OwnError(
        alone_sigma=alone_sigma,
        length=LENGTH,
        between_workloads=BETWEEN_WORKLOADS,
        same_work=SAME_WORK,
    )


def fit_errors(
    files: Mapping[str, Judged], known: Sequence[Judged], spreads: Mapping[str, float]
) -> Errors:
    """The numbers that fit the errors of these files, none of which was read, and of `known`
    clusters, whose models alone were held out."""
    unread = [_clusters(rows.near(), spreads, shares=True) for rows in files.values()]
    samples = [*unread, *(_clusters(rows.near(), spreads, shares=False) for rows in known)]
    start = np.log(list(START.values()))

    def cost(z: np.ndarray) -> float:
        values = dict(zip(START, np.exp(z).tolist(), strict=True))
        likelihood = 0.0
        for clusters in samples:
            of_file = sum(c.negative_log_density(values) for c in clusters)
            count = sum(len(c.error) for c in clusters)
            likelihood += of_file / count * min(count, ENOUGH)
        return likelihood + 0.5 * float((((z - start) / LOOSE) ** 2).sum())

    simplex = np.vstack([start, start + 0.3 * np.eye(len(start))])
    found = minimize(
        cost, start, method="Nelder-Mead", options={"maxfev": STEPS, "initial_simplex": simplex}
    )
    best = dict(zip(START, np.exp(found.x).tolist(), strict=True))
    constants = [
        float(np.mean(np.concatenate([np.diag(c.by_constants) for c in clusters])))
        for clusters in unread
    ]
    return Errors(
        level_sigma=best["level"], time_sigma=best["time"], comm_sigma=best["comm"], spreads=dict(spreads),
        own_error=own_error(best["alone"]),
        shared_sigma=float(np.sqrt(best["level"] ** 2 + np.mean(constants))),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """Rows of one cluster and its software."""

    error: np.ndarray
    shares: bool
    """whether all rows share the error of a level"""
    by_constants: np.ndarray
    """covariance that is due to the constants, shape (n, n)"""
    rows: Sensitivity
    pooled: np.ndarray
    """whether the own error is that of pooled constants; else it is that of a pair, and known"""
    moving: np.ndarray
    expert_sigma: np.ndarray

    def negative_log_density(self, values: Mapping[str, float]) -> float:
        own = np.sqrt(
            values["time"] ** 2 + (values["comm"] * self.moving) ** 2 + self.expert_sigma**2
        )
        rows = replace(self.rows, own_sigma=np.where(self.pooled, own, self.rows.own_sigma))
        level = values["level"] if self.shares else 0.0
        like = own_error(values["alone"])
        alone = np.maximum(like.alone(rows), LEAST_SIGMA) ** 2
        whole = level**2 + self.by_constants + like.covariance(rows, rows) + np.diag(alone)
        try:
            factor = cholesky(whole, lower=True)
        except LinAlgError:
            return 1e9
        scaled = solve_triangular(factor, self.error, lower=True)
        return float(0.5 * scaled @ scaled + np.log(np.diag(factor)).sum())


def _clusters(rows: Judged, spreads: Mapping[str, float], *, shares: bool) -> list[_Cluster]:
    """Their rows; `shares`: whether constants and level of the clusters are unknown."""
    out = []
    sigmas = np.array(list(spreads.values())) * shares
    levels = levels_of(rows)
    for where in sorted(set(rows.where.tolist())):
        every = np.flatnonzero(rows.where == where)
        own = rows.take(
            every[np.unique(np.linspace(0, len(every) - 1, min(ROWS, len(every))).astype(int))]
        )
        scaled = own.derivatives.jacobian[:, :-1] * sigmas
        pooled = np.array([kind_of(source) != "pair" for source in own.source.tolist()])
        out.append(
            _Cluster(error=own.error - (0.0 if shares else levels[where]), shares=shares, by_constants=scaled @ scaled.T, rows=own.derivatives, pooled=pooled, moving=own.moving, expert_sigma=own.expert_sigma)
        )  # fmt: skip
    return out
