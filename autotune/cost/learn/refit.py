"""Refit: the constants of a GPU type and trainer given measured trials, by maximum a posteriori,
with what stays uncertain about them.

    log measured_i = log f_i(theta) + level + e_i

    f_i     step time of config i by the cost model (`time.step`)
    theta   logs of K constants: normal about those that ship, with the standard deviations of `refit_values` (how far one cluster lies from another)
    level   what no constant explains and all configs of a cluster share; it is kept as one more constant, of which every derivative is 1
    e       own errors of the configs (`own_error`), which neighbors share in part

Linearised about a point, the posterior is normal: with J = d log f / d theta, prior covariance S
and covariance E of the own errors

    A = J S J' + E        mean = S J' A^-1 y        covariance = S - S J' A^-1 J S          (Rasmussen & Williams 2006, eq. 2.11 and 2.12)

`refit` repeats this about its own mean (Gauss-Newton), so the result is the mode and its curvature
(Laplace). What the trials say nothing about keeps its prior width. Trials may be of several
workloads of the pair. A trial far from what all others say counts less (Huber 1964): a slow node
makes one trial slow, not the cluster. The result depends on prior and trials alone.

Own error: what is wrong about one config's predicted step time beyond the constants and the level,
and how configs share it.

    cov(e_i, e_j) = (r_i r_j w_ij + q a_i a_j k_ij) exp(-d_ij / l) + (1 - q) a_i^2 [i = j]        r_i^2 + a_i^2 = s_i^2        a_i = min(s_i, a)

    s   standard deviation of a config's own error (`uncertainty.time_sigma`)
    r   the part that changes from config to config with the knobs
    l   distance over which it is shared: Euclidean, one for each doubling of a count or step of a word, over all knobs
    w   1 within a workload, less between workloads
    a   the part that does not carry over to neighbors: the speed of these very kernels, settings that no knob states, and what repeats differ by
    k   1 for configs in which a rank computes the same for a layer and a micro-batch, else 0: same layer, sequence, tensor degree, micro-batch and recomputation, whatever
        the pipeline, the number of ranks and the accumulation. Their kernels are the same ones, in a large job and in a small one
    q   share of a^2 that such configs have in common

The exponential kernel is that of an Ornstein-Uhlenbeck process: kernels, schedules and message
sizes change with each step of a knob, so errors change in jumps and not smoothly. a, l and w are
those of published files that were not read, q of replays of jobs by smaller ones
(`research/error_fit.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration, refit_values
from autotune.cost.estimator import Sensitivity, sensitivity, step_times
from autotune.spec import KNOBS, ConfigTable, Workload

Array = NDArray[np.float64]

ELSEWHERE = (
    "dp",
    "dp_replicas",
    "zero_stage",
    "accumulation_steps",
    "pp",
    "pp_schedule",
    "virtual_stages",
    "pp_split",
)
"""knobs that do not change what a rank computes for a layer and a micro-batch"""
WORK = [k for k, name in enumerate(KNOBS) if name not in ELSEWHERE]

FEW = 1 << 14
"""distances below which SciPy's module for them is not worth its import, which takes a quarter of a
second"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnError:
    """How the own errors of configs resemble each other."""

    alone_sigma: float
    """a"""
    length: float
    """l"""
    between_workloads: float
    """w of configs of different workloads"""
    same_work: float
    """q"""

    def covariance(self, rows: Sensitivity, others: Sensitivity) -> Array:
        """Covariance of the part that neighbors share, shape (N, n)."""
        distances = _distances(rows.points, others.points)
        same = rows.workloads[:, None] == others.workloads[None, :]
        near = np.exp(-distances / self.length)
        rest = np.outer(self.rest(rows), self.rest(others)) * np.where(
            same, 1.0, self.between_workloads
        )
        kernels = (
            self.same_work
            * np.outer(self._sharp(rows), self._sharp(others))
            * _same_work(rows, others)
        )
        return np.asarray((rest + kernels) * near)

    def alone(self, rows: Sensitivity) -> Array:
        """Standard deviation of the part that a measurement shares with no other, shape (n,)."""
        return np.asarray(np.sqrt(1.0 - self.same_work) * self._sharp(rows))

    def rest(self, rows: Sensitivity) -> Array:
        """Standard deviation of the part that changes with the knobs, shape (n,)."""
        return np.asarray(np.sqrt(rows.own_sigma**2 - self._sharp(rows) ** 2))

    def _sharp(self, rows: Sensitivity) -> Array:
        return np.minimum(rows.own_sigma, self.alone_sigma)


def _distances(a: Array, b: Array) -> Array:
    """Euclidean distances, shape (N, n)."""
    if len(a) * len(b) > FEW:
        import scipy

        return np.asarray(scipy.spatial.distance.cdist(a, b))
    squares = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):  # in cdist's order, so that both give the same number
        squares += (a[:, k, None] - b[None, :, k]) ** 2
    return np.asarray(np.sqrt(squares))


def _same_work(rows: Sensitivity, others: Sensitivity) -> NDArray[np.bool_]:
    """k, shape (N, n)."""
    width = rows.points.shape[1]
    work = [*WORK, *range(len(KNOBS), width)]
    return np.asarray(
        (_distances(rows.points[:, work], others.points[:, work]) == 0)
        & (rows.layers[:, None] == others.layers[None, :])
    )


HUBER = 1.5
"""standard deviations of its own error beyond which a trial counts less"""
LEAST_SIGMA = 0.02
"""smallest standard deviation of a measurement: repeats of one config differ by this much"""
WEIGHINGS = 8
"""repetitions of weighing the trials; the weights settle within a few"""
ROUNDS = 16
"""Gauss-Newton steps at most"""
PARTS = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""of a Gauss-Newton step, of which the one that fits best is taken: farther away the derivatives
are others"""
SETTLED = 0.02
"""a step that makes the trials more probable by less than this, in log density, is not taken"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainConstants:
    """Constants of the cost model with what is not known about them."""

    constants: Calibration
    """the most probable ones"""
    names: tuple[str, ...]
    """the K constants that may be wrong"""
    log_level: float
    """log of the factor on all step times"""
    covariance: Array
    """of the logs of these constants and of the level, which comes last, shape (K + 1, K + 1)"""
    own_error: OwnError
    """how the own errors of configs resemble each other"""

    def at(self, logs: Array) -> UncertainConstants:
        """The same with each constant multiplied by the exponential of `logs`, and the last of them
        added to the log of the level."""
        values: dict[str, Any] = {
            n: self._moved(n, v) for n, v in zip(self.names, logs[:-1], strict=True)
        }
        return replace(
            self,
            constants=replace(self.constants, **values),
            log_level=self.log_level + float(logs[-1]),
        )

    def _moved(self, name: str, log: float) -> float:
        """A constant multiplied by the exponential of `log`, at most what it can be."""
        value: float = getattr(self.constants, name) * float(np.exp(log))
        return min(value, _most(name, self.constants))

    def ends(self, reach: float) -> dict[str, tuple[float, float]]:
        """Each constant at so many standard deviations below and above."""
        sigmas = np.sqrt(np.diag(self.covariance))[:-1]
        return {
            name: (self._moved(name, -reach * sigma), self._moved(name, reach * sigma))
            for name, sigma in zip(self.names, sigmas, strict=True)
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured step times of configs of one workload; each config once."""

    workload: Workload
    table: ConfigTable
    step_time_s: Array
    """shape (n,)"""


def uncertain(
    constants: Calibration,
    known: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
) -> UncertainConstants:
    """The constants before any trial, as far as the clusters of a GPU type and trainer lie apart.
    `known`: in place of `refit_values`; `names`: the constants that may be wrong (default: all that
    are not zero)."""
    known = known or refit_values()
    spreads = {
        n: s
        for n, s in known["spreads"].items()
        if (getattr(constants, n) > 0 if names is None else n in names)
    }
    sigmas = np.array([*spreads.values(), known["level_sigma"]])
    return UncertainConstants(
        constants=constants, names=tuple(spreads), log_level=0.0, covariance=np.diag(sigmas**2), own_error=OwnError(**known["own_error"])
    )  # fmt: skip


def refit(prior: UncertainConstants, trials: Sequence[Measured]) -> UncertainConstants:
    """The constants given these trials; the prior where there are none."""
    return linearised(prior, trials)[0] if trials else prior


def linearised(
    prior: UncertainConstants, trials: Sequence[Measured]
) -> tuple[UncertainConstants, Conditioned]:
    """The constants given these trials, and what the trials say at the last linearisation. There
    must be a trial."""
    measured = np.log(np.concatenate([t.step_time_s for t in trials]))
    rows_at, log_step_s_at = _looked_at(trials)
    moved, now = np.zeros(len(prior.names) + 1), prior
    left = measured - log_step_s_at(now)
    for _ in range(ROUNDS):
        rows = rows_at(now)
        known = Conditioned.on(rows, left - now.log_level + rows.jacobian @ moved, prior)
        before, least = known.misfit(moved, left - now.log_level), math.inf
        for part in PARTS:
            to = moved + part * (known.moved - moved)
            there = prior.at(to)
            over = measured - log_step_s_at(there)
            misfit = known.misfit(to, over - there.log_level)
            if misfit < least:
                least, best = misfit, (to, there, over)
        if least > before - SETTLED:
            break
        moved, now, left = best
    return replace(now, covariance=known.covariance), known


def _looked_at(
    trials: Sequence[Measured],
) -> tuple[Callable[[UncertainConstants], Sensitivity], Callable[[UncertainConstants], Array]]:
    """The rows of all trials, and the logs of their predicted step times alone, in their order, by
    constants. Workloads that differ in nothing but their global batch, which each config has of its
    own, are looked at together. Knobs of a study's own are left out of the coordinates: other
    studies do not have them."""
    alike: dict[str, list[int]] = {}
    for k, trial in enumerate(trials):
        alike.setdefault(
            f"{replace(trial.workload, global_batch_size=1)!r} {tuple(trial.table.knobs)}", []
        ).append(k)
    groups = [
        (trials[some[0]].workload, ConfigTable.concatenate([trials[k].table for k in some]))
        for some in alike.values()
    ]
    numbers = [np.repeat(some, [len(trials[k].table) for k in some]) for some in alike.values()]
    order = np.argsort(np.concatenate(numbers), kind="stable")
    times = [step_times(workload, table) for workload, table in groups]

    def rows_at(known: UncertainConstants) -> Sensitivity:
        found = [
            sensitivity(workload, table, known.constants, known.names) for workload, table in groups
        ]
        rows = Sensitivity.joined(
            [
                replace(f, workloads=n, points=f.points[:, : len(KNOBS)])
                for f, n in zip(found, numbers, strict=True)
            ]
        )
        return rows.take(order)

    def log_step_s_at(known: UncertainConstants) -> Array:
        return np.asarray(
            np.log(np.concatenate([at(known.constants).total for at in times]))[order]
        )

    return rows_at, log_step_s_at


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioned:
    """What n trials say, at one linearisation."""

    moved: Array
    """mean of the logs of the constants and of the level, relative to the prior, shape (K + 1,)"""
    covariance: Array
    """of these, shape (K + 1, K + 1)"""
    own: Array
    """A^-1 y, which is E^-1 (y - J mean): what own errors are predicted from, shape (n,)"""
    rows: Sensitivity
    """the trials"""
    prior: UncertainConstants
    factor: tuple[Array, bool]
    """Cholesky factor of A"""
    own_factor: tuple[Array, bool]
    """Cholesky factor of E"""

    @classmethod
    def on(cls, rows: Sensitivity, errors: Array, prior: UncertainConstants) -> Conditioned:
        """`errors`: y, log(measured / predicted) of each trial, at the prior mean of the
        constants."""
        import scipy

        own = prior.own_error
        across = rows.jacobian @ prior.covariance
        shared = own.covariance(rows, rows)
        smooth = across @ rows.jacobian.T + shared
        noise = np.maximum(own.alone(rows), LEAST_SIGMA) ** 2
        weights = np.ones(len(errors))
        for _ in range(WEIGHINGS):
            factor = scipy.linalg.cho_factor(
                smooth + np.diag(noise / weights), lower=True, check_finite=False
            )
            solved = scipy.linalg.cho_solve(factor, errors, check_finite=False)
            alone = np.abs(solved) * noise / weights / np.sqrt(noise)
            weights = np.minimum(1.0, HUBER / np.maximum(alone, 1e-9))
        return cls(
            moved=across.T @ solved,
            covariance=prior.covariance - across.T @ scipy.linalg.cho_solve(factor, across, check_finite=False),
            own=solved, rows=rows, prior=prior, factor=factor, own_factor=scipy.linalg.cho_factor(shared + np.diag(noise / weights), lower=True, check_finite=False),
        )  # fmt: skip

    def misfit(self, moved: Array, left: Array) -> float:
        """Negative log density of constants that lie `moved` from the prior and of what they leave
        of the trials, `left`, up to a constant."""
        import scipy

        own = left @ scipy.linalg.cho_solve(self.own_factor, left, check_finite=False)
        return 0.5 * float(own + moved @ np.linalg.solve(self.prior.covariance, moved))

    @property
    def squares(self) -> float:
        """y' A^-1 y: about n where the trials lie as far from what was predicted as the prior
        says."""
        return float(((np.tril(self.factor[0]).T @ self.own) ** 2).sum())

    @property
    def log_evidence(self) -> float:
        """Log density of the trials by the prior, all together, up to a constant (Rasmussen &
        Williams 2006, eq. 2.30)."""
        return -0.5 * self.squares - float(np.log(np.diag(self.factor[0])).sum())

    def left_out(self) -> tuple[Array, Array]:
        """Of each trial's log(measured / predicted), given all others: how far it lies from its
        mean, and its variance; shape (n,) each (Rasmussen & Williams 2006, eq. 5.12)."""
        import scipy

        precision = np.diag(
            scipy.linalg.cho_solve(self.factor, np.eye(len(self.own)), check_finite=False)
        )
        return self.own / precision, 1.0 / precision

    def covariance_of(self, rows: Sensitivity, others: Sensitivity) -> Array:
        """Covariance of the errors of configs with those of others, of what neighbors share, shape
        (N, m)."""
        import scipy

        own, spread = self.prior.own_error, self.prior.covariance
        ours, theirs = (
            some.jacobian @ spread @ self.rows.jacobian.T + own.covariance(some, self.rows)
            for some in (rows, others)
        )
        before = rows.jacobian @ spread @ others.jacobian.T + own.covariance(rows, others)
        return np.asarray(
            before - ours @ scipy.linalg.cho_solve(self.factor, theirs.T, check_finite=False)
        )

    def errors_of(self, rows: Sensitivity) -> tuple[Array, Array, Array]:
        """Of the next measurements of configs at the same linearisation: mean of log(measured /
        predicted), its standard deviation, and the part of it that is due to constants and level;
        shape (N,) each."""
        import scipy

        own = self.prior.own_error
        across = rows.jacobian @ self.prior.covariance @ self.rows.jacobian.T + own.covariance(
            rows, self.rows
        )
        explained = np.einsum(
            "ij,ji->i", across, scipy.linalg.cho_solve(self.factor, across.T, check_finite=False)
        )
        constants = np.einsum("nk,kl,nl->n", rows.jacobian, self.covariance, rows.jacobian)
        prior = (
            np.einsum("nk,kl,nl->n", rows.jacobian, self.prior.covariance, rows.jacobian)
            + rows.own_sigma**2
        )
        variance = np.maximum(prior - explained, LEAST_SIGMA**2)
        return across @ self.own, np.sqrt(variance), np.sqrt(np.clip(constants, 0.0, variance))


def _most(name: str, constants: Calibration) -> float:
    """The greatest value of a constant: fractions are at most one. Those of the peak in 16 bits are
    fractions together with `half_factor`."""
    if name in ("matmul_efficiency", "attention_efficiency"):
        return 1.0 / min(constants.half_factor, 1.0)
    return 1.0 if name.endswith("_efficiency") or name in ("data_overlap", "rails") else math.inf
