"""Refit: maximum a posteriori estimate of the constants of a GPU type and trainer from measured
trials, with its covariance.

    log measured_i = log f_i(theta) + level + e_i

    f_i     step time of config i predicted by the cost model (`time.step`)
    theta   logs of K constants: normal about the shipped ones, with the standard deviations in `refit_values` (variation between clusters)
    level   error that is common to all configs of a cluster and not explained by constants; treated as an additional constant with derivative 1
    e       own errors of the configs, which are correlated between neighbors

Linearized about a point, the posterior is normal. With J = d log f / d theta, prior covariance S
and covariance E of the own errors

    A = J S J' + E        mean = S J' A^-1 y        covariance = S - S J' A^-1 J S          (Rasmussen & Williams 2006, eq. 2.11 and 2.12)

`refit` repeats this about the new mean (Gauss-Newton), so the result is the mode with its curvature
(Laplace). Constants that the trials do not determine keep their prior width. Trials may be of
several workloads of the pair. Outliers get less weight (Huber 1964), because a slow node slows one
trial and not the cluster. The result is a function of prior and trials.

Own error: the error of one config's predicted step time in addition to that of constants and level,
and its covariance between configs.

    cov(e_i, e_j) = (r_i r_j w_ij + q a_i a_j k_ij) exp(-d_ij / l) + (1 - q) a_i^2 [i = j]        r_i^2 + a_i^2 = s_i^2        a_i = min(s_i, a)

    s   standard deviation of a config's own error (`uncertainty.time_sigma`)
    r   standard deviation of the part that changes gradually with the knobs
    l   correlation length; distances are Euclidean over all knobs, with one unit per doubling of a count or step of a word
    w   1 within a workload, less between workloads
    a   standard deviation of the part that is not shared by neighbors: speed of the specific kernels, settings without a knob, noise between runs
    k   1 for configs in which a rank computes the same for a layer and a micro-batch, else 0: same layer, sequence, tensor degree, micro-batch and recomputation, for any
        pipeline, number of ranks and accumulation. They run the same kernels, in large and small jobs
    q   share of a^2 that such configs have in common

The exponential kernel is that of an Ornstein-Uhlenbeck process: kernels, schedules and message
sizes change with each step of a knob, so errors jump instead of changing smoothly. a, l and w were
estimated from published files left out of the fit, q from replays of jobs by smaller ones
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
"""number of distances below which they are computed without SciPy, whose import takes 0.25 s"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnError:
    """Covariance of the own errors of configs."""

    alone_sigma: float
    """a"""
    length: float
    """l"""
    between_workloads: float
    """w of configs of different workloads"""
    same_work: float
    """q"""

    def covariance(self, rows: Sensitivity, others: Sensitivity) -> Array:
        """Return the covariance between configs, without the part that is independent per config,
        shape (N, n)."""
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
        """Return the standard deviation of the part that is independent per config, shape (n,)."""
        return np.asarray(np.sqrt(1.0 - self.same_work) * self._sharp(rows))

    def rest(self, rows: Sensitivity) -> Array:
        """Return r, the standard deviation of the part that changes gradually with the knobs, shape
        (n,)."""
        return np.asarray(np.sqrt(rows.own_sigma**2 - self._sharp(rows) ** 2))

    def _sharp(self, rows: Sensitivity) -> Array:
        """Return a, shape (n,)."""
        return np.minimum(rows.own_sigma, self.alone_sigma)


def _distances(a: Array, b: Array) -> Array:
    """Return the Euclidean distances, shape (N, n)."""
    if len(a) * len(b) > FEW:
        import scipy

        return np.asarray(scipy.spatial.distance.cdist(a, b))
    squares = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):  # in the order of cdist, so that both results are identical
        squares += (a[:, k, None] - b[None, :, k]) ** 2
    return np.asarray(np.sqrt(squares))


def _same_work(rows: Sensitivity, others: Sensitivity) -> NDArray[np.bool_]:
    """Return k, shape (N, n)."""
    width = rows.points.shape[1]
    work = [*WORK, *range(len(KNOBS), width)]
    return np.asarray(
        (_distances(rows.points[:, work], others.points[:, work]) == 0)
        & (rows.layers[:, None] == others.layers[None, :])
    )


HUBER = 1.5
"""residual, in standard deviations of the own error, above which a trial gets less weight"""
LEAST_SIGMA = 0.02
"""minimum standard deviation of ln step time of a measurement: the noise between runs"""
WEIGHINGS = 8
"""number of iterations for the weights, which converge within a few"""
ROUNDS = 16
"""maximum number of Gauss-Newton steps"""
PARTS = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""fractions of a Gauss-Newton step that are tried (line search), because the linearization is only
local"""
SETTLED = 0.02
"""gain in log density below which the iteration ends"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainConstants:
    """Constants of the cost model with their uncertainty."""

    constants: Calibration
    """the most probable constants"""
    names: tuple[str, ...]
    """names of the K uncertain constants"""
    log_level: float
    """ln of the factor on all step times"""
    covariance: Array
    """covariance of the logs of these constants and, last, of the level, shape (K + 1, K + 1)"""
    own_error: OwnError
    """covariance of the own errors of configs"""

    def at(self, logs: Array) -> UncertainConstants:
        """Return the same, with each uncertain constant multiplied by exp(`logs`), and the last of
        `logs` added to the log level. `logs`: shape (K + 1,)."""
        values: dict[str, Any] = {
            n: self._moved(n, v) for n, v in zip(self.names, logs[:-1], strict=True)
        }
        return replace(
            self,
            constants=replace(self.constants, **values),
            log_level=self.log_level + float(logs[-1]),
        )

    def _moved(self, name: str, log: float) -> float:
        """Return a constant multiplied by exp(`log`), limited to its possible maximum."""
        value: float = getattr(self.constants, name) * float(np.exp(log))
        return min(value, _most(name, self.constants))

    def ends(self, reach: float) -> dict[str, tuple[float, float]]:
        """Return the (low, high) values of each uncertain constant, `reach` standard deviations
        below and above."""
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
    """Return the prior: the constants with their variation between clusters of a GPU type and
    trainer. `known`: used instead of `refit_values`; `names`: the uncertain constants (default: all
    that are not zero)."""
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
    """Return the posterior of the constants given these trials; the prior if there are none."""
    return linearized(prior, trials)[0] if trials else prior


def linearized(
    prior: UncertainConstants, trials: Sequence[Measured]
) -> tuple[UncertainConstants, Conditioned]:
    """Return the posterior of the constants given these trials, at least one, and the conditioning
    at the last linearization."""
    measured = np.log(np.concatenate([t.step_time_s for t in trials]))
    rows_at, log_step_s_at = _evaluations(trials)
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


def _evaluations(
    trials: Sequence[Measured],
) -> tuple[Callable[[UncertainConstants], Sensitivity], Callable[[UncertainConstants], Array]]:
    """Return two functions from constants to values of all trials, in their order: the rows with
    derivatives, and the ln of predicted step times. Workloads that differ only in their global
    batch, which is also part of each config, are evaluated together. Own knobs of a study are not
    part of the coordinates, because other studies do not have them."""
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
    """The posterior given n trials, at one linearization."""

    moved: Array
    """posterior mean of the logs of the constants and of the level, relative to the prior, shape
    (K + 1,)"""
    covariance: Array
    """its covariance, shape (K + 1, K + 1)"""
    own: Array
    """A^-1 y = E^-1 (y - J mean), from which own errors are predicted, shape (n,)"""
    rows: Sensitivity
    """the trials"""
    prior: UncertainConstants
    factor: tuple[Array, bool]
    """Cholesky factor of A"""
    own_factor: tuple[Array, bool]
    """Cholesky factor of E"""

    @classmethod
    def on(cls, rows: Sensitivity, errors: Array, prior: UncertainConstants) -> Conditioned:
        """Condition the prior on trials. `errors`: y, log(measured / predicted) of each trial at
        the prior mean of the constants, shape (n,)."""
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
        """Return the negative log density, up to a constant, of logs of constants at the distance
        `moved` from the prior and of the residuals `left` of the trials."""
        import scipy

        own = left @ scipy.linalg.cho_solve(self.own_factor, left, check_finite=False)
        return 0.5 * float(own + moved @ np.linalg.solve(self.prior.covariance, moved))

    @property
    def squares(self) -> float:
        """y' A^-1 y: about n if the errors of the predictions are as large as the prior expects."""
        return float(((np.tril(self.factor[0]).T @ self.own) ** 2).sum())

    @property
    def log_evidence(self) -> float:
        """Joint log density of the trials under the prior, up to a constant (Rasmussen & Williams
        2006, eq. 2.30)."""
        return -0.5 * self.squares - float(np.log(np.diag(self.factor[0])).sum())

    def left_out(self) -> tuple[Array, Array]:
        """Return the leave-one-out residual and variance of each trial's log(measured / predicted),
        given all others; shape (n,) each (Rasmussen & Williams 2006, eq. 5.12)."""
        import scipy

        precision = np.diag(
            scipy.linalg.cho_solve(self.factor, np.eye(len(self.own)), check_finite=False)
        )
        return self.own / precision, 1.0 / precision

    def covariance_of(self, rows: Sensitivity, others: Sensitivity) -> Array:
        """Return the posterior covariance of the errors of configs with those of others, without
        the part that is independent per config, shape (N, m)."""
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
        """Return the prediction for the next measurements of configs at the same linearization:
        mean of log(measured / predicted), its standard deviation, and the part of that due to
        constants and level; shape (N,) each."""
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
    """Return the maximum of a constant: 1 for fractions. Fractions of the peak in 16 bits are
    limited to 1 after multiplication by `half_factor`."""
    if name in ("matmul_efficiency", "attention_efficiency"):
        return 1.0 / min(constants.half_factor, 1.0)
    return 1.0 if name.endswith("_efficiency") or name in ("data_overlap", "rails") else math.inf
