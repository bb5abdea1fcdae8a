"""The cost model's prediction, corrected by observations (Kennedy & O'Hagan 2001, with one factor
per part).

    g(x) = log sum_k part_k(x) exp(f_k) + e(x) + h(z(x))

    part_k   the cost model's K parts of the prediction: seconds or bytes
    f_k      log of the factor by which the cost model is wrong about part k: f ~ N(0, S), S = diag(s_k^2) + s_all^2
    e        residual that no factor explains: Gaussian process, covariance a^2 ((1 - o) matern52 + o [same config])
    o        nugget: share of the residual's variance that is independent between configs
    h        effect of the study's own knobs z(x), if it has any: Gaussian process, covariance s_own^2 k (`kernel.own_correlations`). The cost model
             does not include these knobs, so e does not depend on them, and their effects are learned separately

Conditioning linearizes the sum about the mode of f (Gauss-Newton): J = dg/df, where dg/df_k is the
share of part k in the sum. Then g is one Gaussian process with covariance J S J' + cov(e) + cov(h).
The scales of S, a and s_own are not fixed: `model_average` averages over a small grid of them, so
that a bad cost model is recognized after a few trials and a good one is trusted at once.

Each workload of the history has its own factors, correlated with ours by `transfer_weight`, 0 to 1:
the covariance between two workloads is multiplied by the product of both weights (one common
factor). The residual transfers only between workloads of the same model, because only their
coordinates have the same meaning; for others it made the replay benchmark worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from autotune.search.surrogate.kernel import Alike, apart, matern52, own_variance
from autotune.search.surrogate.observations import Observations

Array = NDArray[np.float64]

SCALE_SPREAD = 0.7
"""prior standard deviation of the log of each scale"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Inputs of the model: n configs."""

    parts: Array
    """predicted parts, shape (n, K), each >= 0, no row all zero"""
    points: Array
    """coordinates, shape (n, d)"""
    workloads: NDArray[np.intp]
    """0 for the searched workload, else the number of the history's workload, shape (n,)"""

    def take(self, index: Any) -> Rows:
        """The rows selected by `index` (integers, a slice or a mask)."""
        return Rows(
            parts=self.parts[index], points=self.points[index], workloads=self.workloads[index]
        )

    def __len__(self) -> int:
        return len(self.parts)

    @classmethod
    def joined(cls, rows: list[Rows]) -> Rows:
        """Concatenate rows."""
        return cls(
            parts=np.concatenate([r.parts for r in rows]),
            points=np.concatenate([r.points for r in rows]),
            workloads=np.concatenate([r.workloads for r in rows]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The prior: standard deviations, and weights of other workloads."""

    factor_sds: Array
    """s_k, shape (K,)"""
    common_sd: float
    """s_all: error that all parts share"""
    residual_sd: float
    """a"""
    transfer_weights: Array
    """correlation of each workload's factors with those of the searched one, by number, shape (W,);
    1 for the searched workload, number 0"""
    residual_weights: Array
    """correlation of the residuals, likewise, shape (W,)"""
    own_sd: float = 0.0
    """s_own: standard deviation of the effect of one of the study's own knobs"""
    own: int = 0
    """number of own knobs, the last columns of the points"""

    def factor_transfer(self, a: NDArray[np.intp], b: NDArray[np.intp]) -> Array:
        """Multipliers of the factors' covariance between rows of workloads a and b, shape (len(a),
        len(b)); (1, 1) without a history."""
        return _pairwise(self.transfer_weights, a, b)

    def residual_transfer(self, a: NDArray[np.intp], b: NDArray[np.intp]) -> Array:
        """Multipliers of the residual's covariance, likewise."""
        return _pairwise(self.residual_weights, a, b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Hyperparameters of the model."""

    factors: float = 1.0
    """multiplier of s_k and s_all"""
    residual: float = 1.0
    """multiplier of a"""
    own: float = 1.0
    """multiplier of the effects of own knobs"""
    length: float = 3.0
    """length scale of the covariance, in doublings of a degree"""
    nugget: float = 0.5
    """o. Held-out errors of neighboring configs differ by as much as the error bar allows (and in
    the vTrain sweep by no less than those of configs four steps apart). Without a nugget, the error
    of one config would be attributed to all of its neighbors."""

    def correlations(self, distances: Array) -> Array:
        """Correlations of e between configs at these distances, same shape."""
        return np.asarray(
            (1.0 - self.nugget) * matern52(distances, self.length)
            + self.nugget * (distances == 0.0)
        )

    @property
    def log_prior(self) -> float:
        """Log prior density up to a constant. The multipliers are log-normal with median one."""
        logs = np.log([self.factors, self.residual, self.own])
        return float(-0.5 * logs @ logs / SCALE_SPREAD**2)


class CorrectedGP:
    """The posterior of g given n observations; n may be 0."""

    def __init__(
        self,
        prior: Prior,
        rows: Rows,
        observations: Observations,
        *,
        scales: Scales | None = None,
        iterations: int = 15,
    ) -> None:
        """`scales`: hyperparameters, by default with all multipliers one. `iterations`: maximum
        number of Gauss-Newton iterations."""
        self._prior = prior
        self._rows = rows
        self._observations = observations
        self._f: Array = np.zeros(len(prior.factor_sds))
        self.scales = scales or Scales()
        if len(observations):
            self.fit(iterations)

    def conditioned_on(self, rows: Rows, values: Array, noise: float) -> CorrectedGP:
        """The posterior with these additional values, shape (m,), and the same hyperparameters."""
        observations = self._observations.with_values(values, noise)
        return CorrectedGP(
            self._prior, Rows.joined([self._rows, rows]), observations, scales=self.scales
        )

    @property
    def factors(self) -> Array:
        """The most probable factor of each part, shape (K,)."""
        return np.exp(self._f)

    def predict(self, rows: Rows, alike: Alike | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation of g, shape (N,) each. `alike`: similarity of `rows` to the
        observations, if already computed."""
        mean, shares = _log_sum(rows.parts, self._f)
        variance = (
            np.einsum("nk,kl,nl->n", shares, self._covariance(), shares) + self._residual_variance
        )
        variance += self._own_variance * own_variance(self._prior.own)
        if len(self._observations):
            residual = self._residual(rows, alike)
            mean = mean + residual @ self._weights
            across = self._factor_covariance(rows, shares) + residual
            explained = solve_triangular(self._lower, across.T, lower=True, check_finite=False)
            variance = variance - np.einsum("ij,ij->j", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def log_predictive(self, which: NDArray[np.bool_]) -> float:
        """Sum of the log densities of the observations in the mask `which`, shape (n,), each given
        all others.

        Leave-one-out densities (Rasmussen & Williams 2006, eq. 5.10) instead of the marginal
        likelihood: they depend less on a wrong prior.
        """
        if not which.any():
            return 0.0
        mean, variance = self._cavity()
        return self._observations.take(which).log_predictive(mean[which], variance[which])

    def fit(self, iterations: int = 15) -> None:
        """Iterate f, g and the Gaussian approximations of the observations to the posterior mode.

        A second call continues where the first one ended.
        """
        rows, observations = self._rows, self._observations
        covariance = self._covariance()
        residual = self._residual(rows)
        f_transfer = self._prior.factor_transfer(rows.workloads, np.zeros(1, dtype=np.intp))
        transfer = self._prior.factor_transfer(rows.workloads, rows.workloads)
        g = np.where(observations.sides == 0, observations.values, _log_sum(rows.parts, self._f)[0])
        outlier = np.zeros(len(observations))
        for _ in range(iterations):
            center, shares = _log_sum(rows.parts, self._f)
            self._targets, self._variances = observations.gaussians(g, outlier)
            prior = transfer * (shares @ covariance @ shares.T) + residual
            self._lower = cholesky(
                prior + np.diag(self._variances + 1e-10), lower=True, check_finite=False
            )
            mean = center - shares @ self._f
            self._weights = cho_solve((self._lower, True), self._targets - mean, check_finite=False)
            step = covariance @ ((shares * f_transfer).T @ self._weights) - self._f
            # limited, because the sum is nearly linear in its factors only within a small step
            step *= min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
            shift = mean + prior @ self._weights - g
            self._f = self._f + step
            g = g + (shift if not observations.sides.any() else 0.7 * shift)
            before, outlier = outlier, observations.outlier_probability(*self._cavity())
            moves = (np.abs(step), np.abs(shift[observations.sides != 0]), np.abs(outlier - before))
            if max(float(m.max(initial=0.0)) for m in moves) < 1e-3:
                break

    def _cavity(self) -> tuple[Array, Array]:
        """Mean and variance of g at each observation given all others, shape (n,) each (Rasmussen &
        Williams 2006, eq. 5.12)."""
        inverse = cho_solve((self._lower, True), np.eye(len(self._weights)), check_finite=False)
        precision = np.diag(inverse)
        return self._targets - self._weights / precision, np.maximum(
            1.0 / precision - self._variances, 1e-12
        )

    def _covariance(self) -> Array:
        sds = self._prior.factor_sds * self.scales.factors
        return np.diag(sds**2) + (self._prior.common_sd * self.scales.factors) ** 2

    @property
    def _residual_variance(self) -> float:
        return (self._prior.residual_sd * self.scales.residual) ** 2

    @property
    def _own_variance(self) -> float:
        return (self._prior.own_sd * self.scales.own) ** 2

    def _residual(self, rows: Rows, alike: Alike | None = None) -> Array:
        """Covariance of e + h between `rows` and the observations, shape (N, n)."""
        if alike is None:
            away, own = apart(rows.points, self._rows.points, self._prior.own)
            alike = Alike(self.scales.correlations(away), own)
        covariance = self._residual_variance * alike.residual
        if self._prior.own:
            covariance += self._own_variance * alike.own
        return np.asarray(
            covariance * self._prior.residual_transfer(rows.workloads, self._rows.workloads)
        )

    def _factor_covariance(self, rows: Rows, shares: Array) -> Array:
        """Covariance between `rows` and the observations caused by the factors, shape (N, n)."""
        _, ours = _log_sum(self._rows.parts, self._f)
        transfer = self._prior.factor_transfer(rows.workloads, self._rows.workloads)
        return np.asarray(transfer * (shares @ self._covariance() @ ours.T))


def _pairwise(weights: Array, a: NDArray[np.intp], b: NDArray[np.intp]) -> Array:
    if len(weights) == 1:
        return np.ones((1, 1))
    return np.where(a[:, None] == b[None, :], 1.0, np.outer(weights[a], weights[b]))


def _log_sum(parts: Array, f: Array) -> tuple[Array, Array]:
    """log sum_k part_k exp(f_k), shape (n,), and the share of each part in it, shape (n, K)."""
    scaled = parts * np.exp(f)
    total = scaled.sum(axis=1)
    return np.log(total), scaled / total[:, None]
