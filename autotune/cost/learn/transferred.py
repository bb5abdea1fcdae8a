"""Predict step times of a workload without trials from trials of other workloads.

    log t = log f(theta) + level + e        theta, level: refitted (`refit`)        e: the config's own error, correlated with those of similar trials (`own_error`)
    variance                                posterior, of constants, level and own error

A constant that the trials do not depend on keeps its prior width, so the interval of a config on
many nodes stays wide, however many trials ran on one node. A config's own error is assumed to be
similar in a smaller job with the same degrees, so own errors are transferred.

A few trials do not determine which prior is right, so predictions are averaged over all priors,
weighted by their evidence (`Conditioned.log_evidence`). Leave-one-out scores do not distinguish
priors: each trial is predicted from the own errors of its neighbors, whatever the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autotune.cost.estimator import Sensitivity, sensitivity
from autotune.cost.learn.correction import Posterior, Refitted
from autotune.cost.learn.refit import LEAST_SIGMA, Array
from autotune.spec import KNOBS, ConfigTable, ParallelConfig, Workload

NEGLIGIBLE = 0.02
"""weight below which a prior is left out of `transferred_gain`"""


def transferred_mean(workload: Workload, table: ConfigTable, found: Refitted) -> Array:
    """Return the mean of each config's ln step time, shape (N,)."""
    return np.asarray(
        sum(b.weight * _mean(b, _rows(workload, table, b, ())) for b in found.posteriors)
    )


def transferred_sigma(workload: Workload, table: ConfigTable, found: Refitted) -> Array:
    """Return the standard deviation of each config's ln step time, shape (N,)."""
    return _mixture_sigma(workload, table, found, lambda mean: mean, _variance)


def transferred_difference(
    workload: Workload, table: ConfigTable, found: Refitted, pick: int
) -> Array:
    """Return the standard deviation of the difference between each config's ln step time and that
    of config `pick`, shape (N,); 0 for `pick` itself."""

    def variance(posterior: Posterior, rows: Sensitivity) -> Array:
        own = _variance(posterior, rows)
        both = own + own[pick] - 2.0 * _covariance(posterior, rows, rows.take([pick]))[:, 0]
        return np.where(np.arange(len(own)) == pick, 0.0, np.maximum(both, LEAST_SIGMA**2))

    return _mixture_sigma(workload, table, found, lambda mean: mean - mean[pick], variance)


def transferred_gain(
    workload: Workload,
    table: ConfigTable,
    found: Refitted,
    pick: int,
    others: Sequence[tuple[Workload, ParallelConfig]],
    running: Sequence[tuple[Workload, ParallelConfig]] = (),
) -> Array:
    """Return how much the variance of each config's difference from config `pick` would fall if all
    `running` trials and one of the M `others` were measured, shape (N, M).

    Averaged over the priors by weight; for priors with certain constants the value of the first
    refitted prior is used, as in `_mixture_sigma`.
    """
    known = [b for b in found.posteriors if b.known.names]
    sure = sum(b.weight for b in found.posteriors if not b.known.names)
    weights = [b.weight + sure * (b is known[0]) for b in known]
    fallen = np.zeros((len(table), len(others)))
    for posterior, weight in zip(known, weights, strict=True):
        if weight >= NEGLIGIBLE:
            ours, both = (
                _rows(workload, table, posterior, posterior.known.names),
                _rows_of([*others, *running], posterior),
            )
            theirs, pending = both.take(slice(len(others))), both.take(slice(len(others), None))
            shared = _covariance(posterior, ours, theirs)
            covariance, variance = (
                shared - shared[pick],
                _variance(posterior, theirs) + LEAST_SIGMA**2,
            )
            if running:
                to_ours, to_theirs, among = (
                    _covariance(posterior, some, pending) for some in (ours, theirs, pending)
                )
                np.fill_diagonal(among, _variance(posterior, pending) + LEAST_SIGMA**2)
                coefficients = np.linalg.solve(among, (to_ours - to_ours[pick]).T)
                covariance = covariance - coefficients.T @ to_theirs.T
                variance = variance - np.einsum(
                    "ij,ji->i", to_theirs, np.linalg.solve(among, to_theirs.T)
                )
                fallen += (
                    weight * np.einsum("ij,ji->i", to_ours - to_ours[pick], coefficients)[:, None]
                )
            fallen += weight * covariance**2 / variance
    return fallen


def _mixture_sigma(
    workload: Workload, table: ConfigTable, found: Refitted, of: Callable[[Array], Array], variance: Callable[[Posterior, Sensitivity], Array]
) -> Array:  # fmt: skip
    """Return the standard deviation of a mixture of normals, one per prior, shape (N,). Priors with
    certain constants were only checked on the trials; elsewhere the constants may vary as they do
    between clusters, so the variance of the first refitted prior is used for them."""
    rows = [_rows(workload, table, b, b.known.names) for b in found.posteriors]
    weights = np.array([[b.weight] for b in found.posteriors])
    means = np.stack([of(_mean(b, r)) for b, r in zip(found.posteriors, rows, strict=True)])
    known = [variance(b, r) for b, r in zip(found.posteriors, rows, strict=True) if b.known.names]
    variances = np.stack([known[0]] * (len(means) - len(known)) + known)
    deviations = means - (weights * means).sum(axis=0)
    return np.asarray(np.sqrt((weights * (variances + deviations**2)).sum(axis=0)))


def _rows(
    workload: Workload, table: ConfigTable, posterior: Posterior, names: tuple[str, ...]
) -> Sensitivity:
    rows = sensitivity(workload, table, posterior.known.constants, names, number=-1)
    return replace(rows, points=rows.points[:, : len(KNOBS)])


def _rows_of(
    configs: Sequence[tuple[Workload, ParallelConfig]], posterior: Posterior
) -> Sensitivity:
    """Return the sensitivity of configs of several workloads, in the given order. Workloads that
    differ only in their global batch are evaluated together. The workload numbers differ from those
    of all trials."""
    alike: dict[str, list[int]] = {}
    for k, (workload, _) in enumerate(configs):
        alike.setdefault(repr(replace(workload, global_batch_size=1)), []).append(k)
    rows = [
        _rows(
            configs[some[0]][0],
            ConfigTable.of([configs[k][1] for k in some]),
            posterior,
            posterior.known.names,
        )
        for some in alike.values()
    ]
    found = Sensitivity.joined(rows).take(
        np.argsort(np.concatenate(list(alike.values())), kind="stable")
    )
    numbers: dict[str, int] = {}
    ids = [numbers.setdefault(repr(workload), -2 - len(numbers)) for workload, _ in configs]
    return replace(found, workloads=np.array(ids, dtype=np.intp))


def _mean(posterior: Posterior, rows: Sensitivity) -> Array:
    mean = rows.log_step_s + posterior.known.log_level
    if posterior.conditioned is None:
        return mean
    return np.asarray(
        mean
        + posterior.known.own_error.covariance(rows, posterior.conditioned.rows)
        @ posterior.conditioned.own
    )


def _variance(posterior: Posterior, rows: Sensitivity) -> Array:
    if posterior.conditioned is not None:
        return np.asarray(posterior.conditioned.errors_of(rows)[1] ** 2)
    shared = np.einsum("nk,kl,nl->n", rows.jacobian, posterior.known.covariance, rows.jacobian)
    return np.asarray(shared + rows.own_sigma**2)


def _covariance(posterior: Posterior, rows: Sensitivity, others: Sensitivity) -> Array:
    """Return the covariance of the ln step times of `rows` with those of `others`, shape (N, m)."""
    conditioned, known = posterior.conditioned, posterior.known
    if conditioned is not None:
        return conditioned.covariance_of(rows, others)
    return np.asarray(
        rows.jacobian @ known.covariance @ others.jacobian.T
        + known.own_error.covariance(rows, others)
    )
