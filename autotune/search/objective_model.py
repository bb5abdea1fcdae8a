"""How the score depends on the step time.

A reward weighs throughput against stability. Its throughput may be per unit of cost, or multiplied
by the statistical efficiency of the global batch (`autotune.reward`):

    score  = slope * (log tokens_per_s + log efficiency - log cost) + offset
    slope  = 1 - stability_weight, or 1 if trials have no reward

The time model predicts tokens_per_s. The efficiency depends only on the global batch once a trial
has measured the gradient noise scale. It is computed and not learned from trials, so that a fast
but inefficient large batch is not tried first. `offset` is the rest of a trial's reward: stability,
and the constant of the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.reward import efficiency, study_noise_scale
from autotune.search.searcher import Problem, score
from autotune.spec import ConfigTable, Estimate, Objective, Trial


def predicted_objective(
    problem: Problem, estimate: Estimate, trials: Sequence[Trial] = ()
) -> NDArray[np.float64]:
    """Log of the predicted throughput including efficiency, cost and failures, up to a constant,
    shape (N,). `trials`: all trials so far."""
    log_tokens = np.log(np.atleast_1d(np.asarray(estimate.tokens_per_s, dtype=np.float64)))
    table = problem.space.table
    log_gain = log_efficiency(problem.objective, table.global_batch_size, trials)
    return np.asarray(
        log_tokens + log_gain - log_cost(problem.objective, table) + log_kept(problem, table)
    )


def log_kept(problem: Problem, table: ConfigTable) -> NDArray[np.float64]:
    """Log of the share of time that is not lost to node failures, shape (N,); zero unless the
    objective includes failures."""
    objective, per_node = problem.objective, problem.space.workload.cluster.gpus_per_node
    sizes, inverse = np.unique(table.world_size, return_inverse=True)
    return np.asarray(
        np.log([objective.training_share(int(size), per_node) for size in sizes])[inverse]
    )


def log_cost(objective: Objective, table: ConfigTable) -> NDArray[np.float64]:
    """Log of each config's cost per second up to a constant, shape (N,): the log of its number of
    ranks for the metric `cost`, else 0."""
    if objective.metric == "cost":
        return np.asarray(np.log(table.world_size))
    return np.zeros(len(table))


def log_efficiency(
    objective: Objective, batches: NDArray[np.int64], trials: Sequence[Trial]
) -> NDArray[np.float64]:
    """Log of the statistical efficiency of these global batches, shape (N,); zero unless the
    objective is goodput.

    It is relative to the batch of the first measured trial (the baseline). The noise scale is the
    first measured one; before that, the worst case is assumed.
    """
    if objective.metric != "goodput":
        return np.zeros(len(batches))
    measured = [t for t in trials if t.is_measured]
    reference = measured[0].config.global_batch_size if measured else int(np.min(batches))
    known = (study_noise_scale(t.measurement, None) for t in measured if t.measurement is not None)
    phi = next((phi for phi in known if phi is not None), None)
    sizes, inverse = np.unique(batches, return_inverse=True)
    efficiencies = np.array([efficiency(float(size), float(reference), phi) for size in sizes])
    return np.asarray(np.log(efficiencies)[inverse])


def slope(objective: Objective, *, rewarded: bool) -> float:
    """Derivative of the score with respect to the log of the throughput."""
    return 1.0 - objective.stability_weight if rewarded else 1.0


def offset_of(trial: Trial, objective: Objective, trials: Sequence[Trial]) -> float:
    """The offset of a trial's score: the score minus the terms of throughput, efficiency (given
    `trials`) and cost. 0 without a reward."""
    if trial.measurement is None or trial.reward is None:
        return 0.0
    table = ConfigTable.of([trial.config])
    throughput = np.log(trial.measurement.tokens_per_s) - log_cost(objective, table)[0]
    gained = log_efficiency(objective, table.global_batch_size, trials)[0]
    return float(score(trial) - slope(objective, rewarded=True) * (throughput + gained))
