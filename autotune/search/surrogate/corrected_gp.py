"""A prediction that is a sum of parts, corrected by what was observed (Kennedy & O'Hagan 2001, with a factor for each part).

    g(x) = log sum_k part_k(x) exp(f_k) + e(x)

    part_k   the cost model's prediction by cause, K of them: seconds or bytes
    f_k      log of the factor by which the cost model is wrong about cause k: f ~ N(0, S), S = diag(s_k^2) + s_all^2
    e        what no factor explains: Gaussian process, covariance a^2 ((1 - o) matern52 + o [same config])

Conditioning linearizes the sum about the mode of f (Gauss-Newton), where d g / d f_k is the share of part k; then everything is one
Gaussian process with covariance J S J' + a^2 k. The scales of s and a and the length of k are those of greatest posterior
density on a small grid, so that a bad cost model is found out after a few trials and a good one is trusted at once.

Observations of other workloads (the history) have factors of their own that correlate with ours by `transfer_weight`, 0 to 1: covariances between
two workloads are multiplied by the product of both kinships (one common factor). The residual carries over only between workloads of the
same model, whose coordinates mean the same: elsewhere it did harm in the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from autotune.search.surrogate.kernel import distances, matern52
from autotune.search.surrogate.observations import Observations

Array = NDArray[np.float64]

SCALE_SPREAD = 0.7
"""standard deviation of the log of each scale, before any observation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Configs as the model sees them."""

    parts: Array
    """predicted parts, shape (n, K), each >= 0, no row all zero"""
    points: Array
    """coordinates, shape (n, d)"""
    workloads: NDArray[np.intp]
    """0 for the workload that is searched, else which of the history, shape (n,)"""

    def take(self, index: Any) -> Rows:
        """The rows that `index` (integers, a slice or a mask) names."""
        return Rows(parts=self.parts[index], points=self.points[index], workloads=self.workloads[index])

    def __len__(self) -> int:
        return len(self.parts)

    @classmethod
    def joined(cls, rows: list[Rows]) -> Rows:
        """All rows, one after the other."""
        return cls(
            parts=np.concatenate([r.parts for r in rows]),
            points=np.concatenate([r.points for r in rows]),
            workloads=np.concatenate([r.workloads for r in rows]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known before any observation."""

    factor_sds: Array
    """s_k, shape (K,)"""
    common_sd: float
    """s_all: error that all parts share"""
    residual_sd: float
    """a"""
    kinships: Array
    """of each workload to the searched one, by number; 1 for the first, shape (W,)"""

    likenesses: Array
    """the same for the residual, shape (W,)"""

    def kin(self, a: NDArray[np.intp], b: NDArray[np.intp]) -> Array:
        """Multipliers of the factors' covariances between observations of workloads a and b, shape (len(a), len(b)), or (1, 1) without a history."""
        return _between(self.kinships, a, b)

    def like(self, a: NDArray[np.intp], b: NDArray[np.intp]) -> Array:
        """Multipliers of the residual's covariances."""
        return _between(self.likenesses, a, b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Hyperparameters."""

    factors: float = 1.0
    """multiplier of s_k and s_all"""
    residual: float = 1.0
    """multiplier of a"""
    length: float = 3.0
    """of the covariance, in doublings of a degree"""
    own: float = 0.5
    """o: share of a^2 that is each config's own. Held-out errors of configs one step apart differ by as much as the error bar
    allows (and in the vTrain sweep by no less than those of configs four steps apart); without it the model takes one config's error
    for that of its neighbours."""

    def correlations(self, away: Array) -> Array:
        """Of e at these distances, of the same shape."""
        return np.asarray((1.0 - self.own) * matern52(away, self.length) + self.own * (away == 0.0))

    @property
    def log_prior(self) -> float:
        """Log density, up to a constant: both multipliers are log-normal about one."""
        return float(-0.5 * (np.log(self.factors) ** 2 + np.log(self.residual) ** 2) / SCALE_SPREAD**2)


class CorrectedGP:
    """The posterior of g, given n observations (none is fine)."""

    def __init__(
        self, prior: Prior, rows: Rows, sites: Observations, *, scales: Scales | None = None, rounds: int = 15
    ) -> None:
        """`scales`: hyperparameters (default: all multipliers one); `rounds`: of Gauss-Newton, at most."""
        self._prior = prior
        self._rows = rows
        self._sites = sites
        self._f: Array = np.zeros(len(prior.factor_sds))
        self.scales = scales or Scales()
        if len(sites):
            self.settle(rounds)

    def and_values(self, rows: Rows, values: Array, noise: float) -> CorrectedGP:
        """The posterior after these values were seen too, shape (m,), under the same hyperparameters."""
        sites = self._sites.and_values(values, noise)
        return CorrectedGP(self._prior, Rows.joined([self._rows, rows]), sites, scales=self.scales)

    @property
    def factors(self) -> Array:
        """By what each part is multiplied, most probably, shape (K,)."""
        return np.exp(self._f)

    def predict(self, rows: Rows, near: Array | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation of g, shape (N,) each; `near`: correlations of `rows` with the observations, where they are known."""
        mean, shares = _log_sum(rows.parts, self._f)
        variance = np.einsum("nk,kl,nl->n", shares, self._covariance(), shares) + self._residual_variance
        if len(self._sites):
            residual = self._residual(rows, near)
            mean = mean + residual @ self._weights
            across = self._kin_shares(rows, shares) + residual
            explained = solve_triangular(self._lower, across.T, lower=True, check_finite=False)
            variance = variance - np.einsum("ij,ij->j", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def log_predictive(self, which: NDArray[np.bool_]) -> float:
        """Log density that each observation of `which`, a mask of shape (n,), has under all others; summed.

        Leave-one-out densities (Rasmussen & Williams 2006, eq. 5.10) rather than the evidence: they forgive a wrong prior better.
        """
        if not which.any():
            return 0.0
        mean, variance = self._cavity()
        return self._sites.take(which).log_predictive(mean[which], variance[which])

    def settle(self, rounds: int = 15) -> None:
        """Comes nearer to the mode of f and g, and to the Gaussians that stand for the sites there."""
        rows, sites = self._rows, self._sites
        covariance = self._covariance()
        residual = self._residual(rows)
        to_f = self._prior.kin(rows.workloads, np.zeros(1, dtype=np.intp))
        kin = self._prior.kin(rows.workloads, rows.workloads)
        g = np.where(sites.sides == 0, sites.values, _log_sum(rows.parts, self._f)[0])
        disturbed = np.zeros(len(sites))
        for _ in range(rounds):
            center, shares = _log_sum(rows.parts, self._f)
            self._targets, self._variances = sites.gaussians(g, disturbed)
            prior = kin * (shares @ covariance @ shares.T) + residual
            self._lower = cholesky(prior + np.diag(self._variances + 1e-10), lower=True, check_finite=False)
            mean = center - shares @ self._f
            self._weights = cho_solve((self._lower, True), self._targets - mean, check_finite=False)
            step = covariance @ ((shares * to_f).T @ self._weights) - self._f
            # a long step leaves the region where the sum is linear in its factors
            step *= min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
            shift = mean + prior @ self._weights - g
            self._f = self._f + step
            g = g + (shift if not sites.sides.any() else 0.7 * shift)
            was, disturbed = disturbed, sites.disturbed(*self._cavity())
            moves = (np.abs(step), np.abs(shift[sites.sides != 0]), np.abs(disturbed - was))
            if max(float(m.max(initial=0.0)) for m in moves) < 1e-3:
                break

    def _cavity(self) -> tuple[Array, Array]:
        """Mean and variance of g at each observation, given all others, shape (n,) each (eq. 5.12 there)."""
        inverse = cho_solve((self._lower, True), np.eye(len(self._weights)), check_finite=False)
        precision = np.diag(inverse)
        return self._targets - self._weights / precision, np.maximum(1.0 / precision - self._variances, 1e-12)

    def _covariance(self) -> Array:
        sds = self._prior.factor_sds * self.scales.factors
        return np.diag(sds**2) + (self._prior.common_sd * self.scales.factors) ** 2

    @property
    def _residual_variance(self) -> float:
        return (self._prior.residual_sd * self.scales.residual) ** 2

    def _residual(self, rows: Rows, near: Array | None = None) -> Array:
        """Covariance of e between `rows` and the observations, shape (N, n)."""
        if near is None:
            near = self.scales.correlations(distances(rows.points, self._rows.points))
        return near * self._prior.like(rows.workloads, self._rows.workloads) * self._residual_variance

    def _kin_shares(self, rows: Rows, shares: Array) -> Array:
        """Covariance between `rows` and the observations that common factors make, shape (N, n)."""
        _, ours = _log_sum(self._rows.parts, self._f)
        kin = self._prior.kin(rows.workloads, self._rows.workloads)
        return np.asarray(kin * (shares @ self._covariance() @ ours.T))


def _between(similarities: Array, a: NDArray[np.intp], b: NDArray[np.intp]) -> Array:
    if len(similarities) == 1:
        return np.ones((1, 1))
    return np.where(a[:, None] == b[None, :], 1.0, np.outer(similarities[a], similarities[b]))


def _log_sum(parts: Array, f: Array) -> tuple[Array, Array]:
    """log sum_k part_k exp(f_k), shape (n,), and the share of each part in it, shape (n, K)."""
    scaled = parts * np.exp(f)
    total = scaled.sum(axis=1)
    return np.log(total), scaled / total[:, None]
