"""Several models of one quantity, averaged: each counts by how well it foresaw the trials that were told.

    w_m    ~ prior_m * prod_i p(y_i | all other y, model m)      over the trials of the searched workload (Geisser & Eddy 1979)

The models are the cost model, corrected, at every scale of its errors on a small grid (`corrected.Scales`), with earlier studies and without them, and one
that knows nothing: a common level and a Gaussian process over the knobs, as spread out as the predictions are among themselves.

After a few trials no scale is known, and the candidates that were tried resemble one another: to take the most probable scale for the true one
says that the search is done when it is not. The average has the heavy tails that such ignorance deserves. The model that knows nothing is
there for the day when the cost model does not describe the cluster at all: it then wins within a few trials, and what another trial
may bring is as much as the spread of the configs allows. Trials of other workloads do not vote: that the cost model is right elsewhere does
not make it right here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from autotune.search.surrogate.corrected_gp import CorrectedGP, Prior, Rows, Scales
from autotune.search.surrogate.kernel import distances
from autotune.search.surrogate.observations import Observations

Array = NDArray[np.float64]

BLOCK = 1 << 15
"""candidates that are scored at once"""
FACTORS, RESIDUALS = (1.0, 3.0), (1.0 / 3.0, 1.0, 3.0)
"""Scales that are averaged over. No factor is below one: the candidates that are tried first are made up of the same parts, so that
their agreement with the prediction says little of the other parts. What is each config's own, on the contrary, every trial tells something of."""
KNOWS_NOTHING = 0.1
"""probability, before any trial, that the cost model tells nothing about this workload"""
LEVEL_SD = 1.0
"""standard deviation of the log of the common level, for the model that knows nothing"""
LENGTH, OWN = 1.5, 0.1
"""doublings of a degree over which configs resemble one another, for that model, and what is each config's own: whole step times change faster
than what a prediction leaves over, but nearly all of it as their neighbours do"""
ROUNDS = 6
"""Gauss-Newton rounds while the models are weighed; those that are kept take more"""
NEGLIGIBLE = 0.01
"""models of less weight than this, relative to the greatest, are left out"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One of those that are averaged."""

    corrected: CorrectedGP
    level: float | None = None
    """what is predicted of every config; None: the cost model's parts"""
    sees: NDArray[np.bool_] | None = None
    """which of the n observations it was given; None: all"""

    def predict(self, rows: Rows, near: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of g, shape (N,) each; `near`: correlations of `rows` with all n observations, shape (N, n)."""
        return self.corrected.predict(at_level(rows, self.level), near if self.sees is None else near[:, self.sees])

    def and_believed(self, rows: Rows, noise: float) -> Model:
        """The posterior after these rows came out as this model believes."""
        seen = at_level(rows, self.level)
        corrected = self.corrected.and_values(seen, self.corrected.predict(seen)[0], noise)
        sees = None if self.sees is None else np.append(self.sees, np.ones(len(rows), dtype=np.bool_))
        return replace(self, corrected=corrected, sees=sees)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAverage:
    """The posterior of g: at each candidate a mixture of M normals."""

    models: tuple[Model, ...]
    log_weights: Array
    """log of what each counts, shape (M,); they add up to one"""
    points: Array
    """coordinates of the n observations, shape (n, d)"""

    @classmethod
    def of(cls, prior: Prior, rows: Rows, sites: Observations, *, candidates: Rows) -> ModelAverage:
        """Given n observations; the model that knows nothing takes level and spread from the predictions of `candidates`.

        Before any trial of the searched workload there is nothing to weigh: the cost model counts alone.
        """
        if not (rows.workloads == 0).any():
            alone = Model(corrected=CorrectedGP(prior, rows, sites))
            return cls(models=(alone,), log_weights=np.zeros(1), points=rows.points)
        weighed = [*_corrected(prior, rows, sites), _knowing_nothing(prior, rows, sites, candidates)]
        least = max(log for log, _ in weighed) + math.log(NEGLIGIBLE)
        kept = [(log, model) for log, model in weighed if log >= least]
        for _, model in kept:
            model.corrected.settle()
        log_weights = log_softmax([log for log, _ in kept])
        return cls(models=tuple(model for _, model in kept), log_weights=log_weights, points=rows.points)

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """Mean and standard deviation of g in each model, shape (M, N) each."""
        both = np.empty((2, len(self.models), len(rows)))
        for start in range(0, len(rows), BLOCK):
            some = slice(start, start + BLOCK)
            block = rows.take(some)
            away = distances(block.points, self.points)
            near: dict[tuple[float, float], Array] = {}
            for m, model in enumerate(self.models):
                scales = model.corrected.scales
                kind = (scales.length, scales.own)
                if kind not in near:
                    near[kind] = scales.correlations(away)
                both[:, m, some] = model.predict(block, near[kind])
        return both[0], both[1]

    def and_believed(self, rows: Rows, noise: float) -> ModelAverage:
        """The posterior after these rows came out as each model believes."""
        models = tuple(model.and_believed(rows, noise) for model in self.models)
        return replace(self, models=models, points=np.concatenate([self.points, rows.points]))


def at_level(rows: Rows, level: float | None) -> Rows:
    """The rows with `level` as their only part; None: as they are."""
    return rows if level is None else replace(rows, parts=np.full((len(rows), 1), level))


def _corrected(prior: Prior, rows: Rows, sites: Observations) -> Iterator[tuple[float, Model]]:
    """Log weight, up to a constant, and the cost model at each scale of its errors."""
    ours = rows.workloads == 0
    seen: list[NDArray[np.bool_] | None] = [None] if ours.all() else [None, ours]
    grid = [Scales(factors=f, residual=r) for f, r in itertools.product(FACTORS, RESIDUALS)]
    log_priors = log_softmax([scales.log_prior for scales in grid]) + math.log1p(-KNOWS_NOTHING) - math.log(len(seen))
    for (scales, log_prior), sees in itertools.product(zip(grid, log_priors, strict=True), seen):
        given = (rows, sites) if sees is None else (rows.take(sees), sites.take(sees))
        corrected = CorrectedGP(prior, *given, scales=scales, rounds=ROUNDS)
        yield log_prior + corrected.log_predictive(given[0].workloads == 0), Model(corrected=corrected, sees=sees)


def _knowing_nothing(prior: Prior, rows: Rows, sites: Observations, candidates: Rows) -> tuple[float, Model]:
    """The same of the model that knows nothing."""
    predicted = np.log(candidates.parts.sum(axis=1))
    level, spread = math.exp(float(predicted.mean())), max(float(predicted.std()), prior.residual_sd)
    flat = replace(prior, factor_sds=np.array([LEVEL_SD]), common_sd=0.0, residual_sd=spread)
    ours = rows.workloads == 0
    seen, scales = at_level(rows.take(ours), level), Scales(length=LENGTH, own=OWN)
    corrected = CorrectedGP(flat, seen, sites.take(ours), scales=scales, rounds=ROUNDS)
    log_weight = math.log(KNOWS_NOTHING) + corrected.log_predictive(np.ones(ours.sum(), np.bool_))
    return log_weight, Model(corrected=corrected, level=level, sees=ours)
