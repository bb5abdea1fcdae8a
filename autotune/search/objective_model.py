"""How the score that is maximized hangs on the step time.

A reward weighs throughput against stability; its throughput may be per unit of cost, or times the statistical efficiency of the global batch
(`autotune.reward`):

    score = slope * (log tokens_per_s + log efficiency - log cost) + rest     slope = 1 - stability_weight, or 1 where trials have no reward

The time model predicts the first part. Efficiency hangs on the batch alone, once a trial has told the gradient noise scale: it is computed, not
learnt, so that a large batch that is only fast does not look good until it was tried. `rest` (the baseline's constant, stability) is what
a trial's reward says beyond both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.reward import efficiency, study_noise_scale
from autotune.search.searcher import Problem, score
from autotune.spec import ConfigTable, Estimate, Objective, Trial


def predicted_worth(problem: Problem, estimate: Estimate, trials: Sequence[Trial] = ()) -> NDArray[np.float64]:
    """Log of the predicted throughput in the objective's terms, up to a constant, shape (N,); `trials`: what was measured so far."""
    log_tokens = np.log(np.atleast_1d(np.asarray(estimate.tokens_per_s, dtype=np.float64)))
    table = problem.space.table
    gained = log_efficiency(problem.objective, table.global_batch_size, trials)
    return np.asarray(log_tokens + gained - log_cost(problem.objective, table))


def log_cost(objective: Objective, table: ConfigTable) -> NDArray[np.float64]:
    """Log of what a second of each config costs, up to a constant: ranks where cost counts, else nothing; shape (N,)."""
    if objective.metric == "cost":
        return np.asarray(np.log(table.world_size))
    return np.zeros(len(table))


def log_efficiency(objective: Objective, batches: NDArray[np.int64], trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Log of the progress per sequence at these global batches as the reward counts it, shape (N,): relative to the first measured trial's batch
    (the baseline's), by the noise scale of the first that tells one, else in the worst case. Zero unless the objective is goodput."""
    if objective.metric != "goodput":
        return np.zeros(len(batches))
    measured = [t for t in trials if t.is_measured]
    reference = measured[0].config.global_batch_size if measured else int(np.min(batches))
    known = (study_noise_scale(t.measurement, None) for t in measured if t.measurement is not None)
    phi = next((phi for phi in known if phi is not None), None)
    sizes, places = np.unique(batches, return_inverse=True)
    gained = np.array([efficiency(float(size), float(reference), phi) for size in sizes])
    return np.asarray(np.log(gained)[places])


def slope(objective: Objective, *, rewarded: bool) -> float:
    """Change of the score with the log of the throughput."""
    return 1.0 - objective.stability_weight if rewarded else 1.0


def rest_of(trial: Trial, objective: Objective, trials: Sequence[Trial]) -> float:
    """What the trial's score says beyond its throughput and, after `trials`, its batch's efficiency."""
    if trial.measurement is None or trial.reward is None:
        return 0.0
    table = ConfigTable.of([trial.config])
    throughput = np.log(trial.measurement.tokens_per_s) - log_cost(objective, table)[0]
    gained = log_efficiency(objective, table.global_batch_size, trials)[0]
    return float(score(trial) - slope(objective, rewarded=True) * (throughput + gained))
