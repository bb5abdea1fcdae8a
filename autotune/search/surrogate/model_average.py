"""Bayesian model averaging: several models of one quantity, weighted by how well they predict the
trials.

    w_m    ~ prior_m * prod_i p(y_i | all other y, model m)      over the trials of the searched workload (Geisser & Eddy 1979)

There are three kinds of models. The *corrected* ones are the corrected cost model (`CorrectedGP`)
with every combination of scales on a small grid (`Scales`), each with and without the history. The
*ordering* models assume that the cost model is right only about the order: the level is unknown, no
single part of the time is wrong, and each config has a large independent error. The *uninformed*
models have a constant level and a Gaussian process over the knobs, with the spread of the
predictions.

Averaging is needed because after a few trials the scales are uncertain, and the tried candidates
are similar to each other. The most probable scales alone would stop the search too early; the
average has heavier tails. The uninformed models are for clusters that the cost model does not
describe at all: they then gain weight within a few trials, and the expected gain of further trials
is as large as the spread of the configs allows. Their prior must be small, because a single
extreme result (a first config four times slower than predicted) favors them too, and following them
costs many trials if the cost model's order was right; the ordering models should win then. Trials
of other workloads do not affect the weights, because a cost model that is right elsewhere may be
wrong here.
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
from autotune.search.surrogate.kernel import Alike, apart
from autotune.search.surrogate.observations import Observations

Array = NDArray[np.float64]

BLOCK = 1 << 15
"""number of candidates scored at once"""
FACTORS, RESIDUALS = (1.0, 3.0), (1.0 / 3.0, 1.0, 3.0)
"""grid of `Scales`. No factor scale is below one: the first candidates have similar parts, so their
agreement with the prediction says little about other parts. The residual scale may be below one,
because every trial informs it."""
OWN = (1.0 / 3.0, 1.0, 3.0)
"""grid of the scale of the own knobs' effects"""
ORDERING_PRIOR = 0.5
"""prior probability of the ordering models"""
ORDERING_SDS = (0.25, 0.75)
"""standard deviations of the log of each config's independent error in the ordering models"""
UNINFORMED_PRIOR = 0.01
"""prior probability of the uninformed models"""
LEVEL_SD = 1.0
"""standard deviation of the log of the level in the ordering and uninformed models"""
LENGTH, NUGGET = 1.5, 0.1
"""length scale and nugget of the uninformed models: whole step times vary faster over the knobs
than residuals of a prediction, and more smoothly"""
ITERATIONS = 6
"""Gauss-Newton iterations before the models are weighted; the models that remain are fitted
further"""
NEGLIGIBLE = 0.01
"""minimum weight of a model relative to the largest; others are dropped"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One of the averaged models."""

    gp: CorrectedGP
    """its posterior"""
    level: float | None = None
    """the constant prediction of an uninformed model; None: the cost model's parts"""
    subset: NDArray[np.bool_] | None = None
    """mask of the observations that it is conditioned on, shape (n,); None: all"""

    def predict(self, rows: Rows, alike: Alike) -> tuple[Array, Array]:
        """Mean and standard deviation of g, shape (N,) each. `alike`: similarity of `rows` to all n
        observations."""
        return self.gp.predict(
            at_level(rows, self.level), alike if self.subset is None else alike.take(self.subset)
        )

    def fantasized(self, rows: Rows, noise: float) -> Model:
        """The posterior if the results of these rows are their predicted means (kriging believer:
        Ginsbourger et al. 2010)."""
        rows = at_level(rows, self.level)
        gp = self.gp.conditioned_on(rows, self.gp.predict(rows)[0], noise)
        subset = (
            None
            if self.subset is None
            else np.append(self.subset, np.ones(len(rows), dtype=np.bool_))
        )
        return replace(self, gp=gp, subset=subset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAverage:
    """The posterior of g: at each candidate a mixture of M normals."""

    models: tuple[Model, ...]
    log_weights: Array
    """log of the model weights, shape (M,); the weights add up to one"""
    points: Array
    """coordinates of the n observations, shape (n, d)"""
    own: int = 0
    """number of own knobs, the last columns of the points"""

    @classmethod
    def of(
        cls, prior: Prior, rows: Rows, observations: Observations, *, candidates: Rows
    ) -> ModelAverage:
        """The average given n observations. `candidates`: their predictions provide the level and
        spread of the uninformed models.

        Before any trial of the searched workload, there is nothing to compute weights from, and the
        corrected cost model is the only model.
        """
        if not (rows.workloads == 0).any():
            model = Model(gp=CorrectedGP(prior, rows, observations))
            return cls(models=(model,), log_weights=np.zeros(1), points=rows.points, own=prior.own)
        weighted = [
            *_corrected_models(prior, rows, observations),
            *_ordering(prior, rows, observations),
            *_uninformed(prior, rows, observations, candidates),
        ]
        minimum = max(log for log, _ in weighted) + math.log(NEGLIGIBLE)
        kept = [(log, model) for log, model in weighted if log >= minimum]
        for _, model in kept:
            model.gp.fit()
        log_weights = log_softmax([log for log, _ in kept])
        models = tuple(model for _, model in kept)
        return cls(models=models, log_weights=log_weights, points=rows.points, own=prior.own)

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """Mean and standard deviation of g in each model, shape (M, N) each."""
        mean_and_sd = np.empty((2, len(self.models), len(rows)))
        for start in range(0, len(rows), BLOCK):
            selected = slice(start, start + BLOCK)
            block = rows.take(selected)
            distance, own = apart(block.points, self.points, self.own)
            correlations: dict[tuple[float, float], Array] = {}
            for m, model in enumerate(self.models):
                scales = model.gp.scales
                kind = (scales.length, scales.nugget)
                if kind not in correlations:
                    correlations[kind] = scales.correlations(distance)
                mean_and_sd[:, m, selected] = model.predict(block, Alike(correlations[kind], own))
        return mean_and_sd[0], mean_and_sd[1]

    def fantasized(self, rows: Rows, noise: float) -> ModelAverage:
        """The posterior if the results of these rows are the means that each model predicts, with
        the same weights."""
        models = tuple(model.fantasized(rows, noise) for model in self.models)
        return replace(self, models=models, points=np.concatenate([self.points, rows.points]))


def at_level(rows: Rows, level: float | None) -> Rows:
    """The rows with `level` as their only part; unchanged for None."""
    return rows if level is None else replace(rows, parts=np.full((len(rows), 1), level))


def _corrected_models(
    prior: Prior, rows: Rows, observations: Observations
) -> Iterator[tuple[float, Model]]:
    """The corrected cost model for each combination of scales and data, with its log weight up to a
    constant."""
    ours = rows.workloads == 0
    subsets: list[NDArray[np.bool_] | None] = [None] if ours.all() else [None, ours]
    grid = [
        Scales(factors=f, residual=r, own=o)
        for f, r, o in itertools.product(FACTORS, RESIDUALS, _own(prior))
    ]
    log_priors = (
        log_softmax([scales.log_prior for scales in grid])
        + math.log1p(-UNINFORMED_PRIOR - ORDERING_PRIOR)
        - math.log(len(subsets))
    )
    for (scales, log_prior), subset in itertools.product(
        zip(grid, log_priors, strict=True), subsets
    ):
        used = slice(None) if subset is None else subset
        used_rows = rows.take(used)
        gp = CorrectedGP(
            prior, used_rows, observations.take(used), scales=scales, iterations=ITERATIONS
        )
        yield log_prior + gp.log_predictive(used_rows.workloads == 0), Model(gp=gp, subset=subset)


def _ordering(
    prior: Prior, rows: Rows, observations: Observations
) -> Iterator[tuple[float, Model]]:
    """The ordering models, with their log weights up to the same constant."""
    ours = rows.workloads == 0
    our_rows, our_observations = rows.take(ours), observations.take(ours)
    for residual_sd, (own, log_prior) in itertools.product(ORDERING_SDS, _own(prior).items()):
        free = replace(
            prior,
            factor_sds=np.zeros_like(prior.factor_sds),
            common_sd=LEVEL_SD,
            residual_sd=residual_sd,
        )
        gp = CorrectedGP(
            free,
            our_rows,
            our_observations,
            scales=Scales(nugget=1.0, own=own),
            iterations=ITERATIONS,
        )
        log_prior += math.log(ORDERING_PRIOR / len(ORDERING_SDS))
        yield (
            log_prior + gp.log_predictive(np.ones(ours.sum(), np.bool_)),
            Model(gp=gp, subset=ours),
        )


def _own(prior: Prior) -> dict[float, float]:
    """Scales of the own knobs' effects, with their log prior probabilities."""
    scales = OWN if prior.own else (1.0,)
    log_priors = log_softmax([Scales(own=scale).log_prior for scale in scales]).tolist()
    return dict(zip(scales, log_priors, strict=True))


def _uninformed(
    prior: Prior, rows: Rows, observations: Observations, candidates: Rows
) -> Iterator[tuple[float, Model]]:
    """The uninformed models, with their log weights up to the same constant."""
    predicted = np.log(candidates.parts.sum(axis=1))
    level = math.exp(float(predicted.mean()))
    spread = max(float(predicted.std()), prior.residual_sd)
    flat = replace(prior, factor_sds=np.array([LEVEL_SD]), common_sd=0.0, residual_sd=spread)
    ours = rows.workloads == 0
    our_rows = at_level(rows.take(ours), level)
    for own, log_prior in _own(prior).items():
        scales = Scales(length=LENGTH, nugget=NUGGET, own=own)
        gp = CorrectedGP(
            flat, our_rows, observations.take(ours), scales=scales, iterations=ITERATIONS
        )
        log_prior += math.log(UNINFORMED_PRIOR)
        yield (
            log_prior + gp.log_predictive(np.ones(ours.sum(), np.bool_)),
            Model(gp=gp, level=level, subset=ours),
        )
