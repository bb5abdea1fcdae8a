"""What trials of other workloads say about the step times of a workload of which nothing was
measured.

    log t = log f(theta) + level + e        theta, level: refitted (`refit`)        e: the config's own error, as far as those of the trials resemble it (`own_error`)
    variance                                of constants, level and own error, given the trials

A constant that the trials do not depend on keeps its prior width, so the interval of a config on
many nodes stays wide, however often one node was measured. What is wrong about one config is wrong
about it in a smaller job of the same degrees too, so own errors are carried over.

Which prior is right is not known after a few trials. So the answers of all are averaged, each with
the evidence of its prior (`Conditioned.log_evidence`). Left-out trials do not tell priors apart:
each is predicted from the own errors of its neighbors, whatever the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autotune.cost.estimator import Sensitivity, sensitivity
from autotune.cost.learn.correction import Believed, Refitted
from autotune.cost.learn.refit import LEAST_SIGMA, Array
from autotune.spec import KNOBS, ConfigTable, ParallelConfig, Workload

NEGLIGIBLE = 0.02
"""weight of a prior below which it is not asked what a measurement would tell"""


def transferred_mean(workload: Workload, table: ConfigTable, found: Refitted) -> Array:
    """Mean of the log step time of each config, shape (N,)."""
    return np.asarray(
        sum(b.weight * _mean(b, _rows(workload, table, b, ())) for b in found.believed)
    )


def transferred_sigma(workload: Workload, table: ConfigTable, found: Refitted) -> Array:
    """Standard deviation of the log step time of each config, shape (N,)."""
    return _mixed(workload, table, found, lambda mean: mean, _variance)


def transferred_difference(
    workload: Workload, table: ConfigTable, found: Refitted, pick: int
) -> Array:
    """Standard deviation of the difference of each config's log step time from that of config
    `pick`, shape (N,); 0 for itself."""

    def variance(believed: Believed, rows: Sensitivity) -> Array:
        own = _variance(believed, rows)
        both = own + own[pick] - 2.0 * _covariance(believed, rows, rows.take([pick]))[:, 0]
        return np.where(np.arange(len(own)) == pick, 0.0, np.maximum(both, LEAST_SIGMA**2))

    return _mixed(workload, table, found, lambda mean: mean - mean[pick], variance)


def transferred_gain(
    workload: Workload,
    table: ConfigTable,
    found: Refitted,
    pick: int,
    others: Sequence[tuple[Workload, ParallelConfig]],
    running: Sequence[tuple[Workload, ParallelConfig]] = (),
) -> Array:
    """By how much the variance of each config's difference from config `pick` would fall if one of
    M configs of other workloads were measured, and all those that are `running`, shape (N, M).

    Averaged over the priors by their weights; those whose constants are known count as the first
    refit, as in the widths.
    """
    known = [b for b in found.believed if b.known.names]
    sure = sum(b.weight for b in found.believed if not b.known.names)
    weights = [b.weight + sure * (b is known[0]) for b in known]
    fallen = np.zeros((len(table), len(others)))
    for believed, weight in zip(known, weights, strict=True):
        if weight >= NEGLIGIBLE:
            ours, both = (
                _rows(workload, table, believed, believed.known.names),
                _rows_of([*others, *running], believed),
            )
            theirs, pending = both.take(slice(len(others))), both.take(slice(len(others), None))
            shared = _covariance(believed, ours, theirs)
            covariance, variance = (
                shared - shared[pick],
                _variance(believed, theirs) + LEAST_SIGMA**2,
            )
            if running:
                to_ours, to_theirs, among = (
                    _covariance(believed, some, pending) for some in (ours, theirs, pending)
                )
                np.fill_diagonal(among, _variance(believed, pending) + LEAST_SIGMA**2)
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


def _mixed(
    workload: Workload, table: ConfigTable, found: Refitted, of: Callable[[Array], Array], variance: Callable[[Believed, Sensitivity], Array]
) -> Array:  # fmt: skip
    """Standard deviation of a mixture of normals, one for each prior. That constants are known, or
    all but a level, was judged by the trials; what these do not tell may be off as clusters are, so
    the width of the first refit stands for both."""
    rows = [_rows(workload, table, b, b.known.names) for b in found.believed]
    weights = np.array([[b.weight] for b in found.believed])
    means = np.stack([of(_mean(b, r)) for b, r in zip(found.believed, rows, strict=True)])
    known = [variance(b, r) for b, r in zip(found.believed, rows, strict=True) if b.known.names]
    variances = np.stack([known[0]] * (len(means) - len(known)) + known)
    deviations = means - (weights * means).sum(axis=0)
    return np.asarray(np.sqrt((weights * (variances + deviations**2)).sum(axis=0)))


def _rows(
    workload: Workload, table: ConfigTable, believed: Believed, names: tuple[str, ...]
) -> Sensitivity:
    rows = sensitivity(workload, table, believed.known.constants, names, number=-1)
    return replace(rows, points=rows.points[:, : len(KNOBS)])


def _rows_of(configs: Sequence[tuple[Workload, ParallelConfig]], believed: Believed) -> Sensitivity:
    """Configs of several workloads, in their order; those of workloads that differ in their global
    batch alone are looked at together. None of these workloads counts as that of a trial."""
    alike: dict[str, list[int]] = {}
    for k, (workload, _) in enumerate(configs):
        alike.setdefault(repr(replace(workload, global_batch_size=1)), []).append(k)
    rows = [
        _rows(
            configs[some[0]][0],
            ConfigTable.of([configs[k][1] for k in some]),
            believed,
            believed.known.names,
        )
        for some in alike.values()
    ]
    found = Sensitivity.joined(rows).take(
        np.argsort(np.concatenate(list(alike.values())), kind="stable")
    )
    numbers: dict[str, int] = {}
    ids = [numbers.setdefault(repr(workload), -2 - len(numbers)) for workload, _ in configs]
    return replace(found, workloads=np.array(ids, dtype=np.intp))


def _mean(believed: Believed, rows: Sensitivity) -> Array:
    mean = rows.log_step_s + believed.known.log_level
    if believed.said is None:
        return mean
    return np.asarray(
        mean + believed.known.own_error.covariance(rows, believed.said.rows) @ believed.said.own
    )


def _variance(believed: Believed, rows: Sensitivity) -> Array:
    if believed.said is not None:
        return np.asarray(believed.said.errors_of(rows)[1] ** 2)
    shared = np.einsum("nk,kl,nl->n", rows.jacobian, believed.known.covariance, rows.jacobian)
    return np.asarray(shared + rows.own_sigma**2)


def _covariance(believed: Believed, rows: Sensitivity, others: Sensitivity) -> Array:
    """Of the log step times of configs with others of them, shape (N, m)."""
    said, known = believed.said, believed.known
    if said is not None:
        return said.covariance_of(rows, others)
    return np.asarray(
        rows.jacobian @ known.covariance @ others.jacobian.T
        + known.own_error.covariance(rows, others)
    )
