"""How the score that is maximized hangs on the step time.

A reward weighs throughput against stability, and its throughput may be per unit of cost (`autotune.reward`):

    score = slope * (log tokens_per_s - log cost) + rest        slope = 1 - stability_weight, or 1 where trials have no reward

The time model predicts the first part. `rest` (the baseline's constant, stability, statistical efficiency) is what a trial's reward
says beyond it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autotune.search.searcher import Problem, score
from autotune.spec import ConfigTable, Estimate, Objective, Trial


def predicted_worth(problem: Problem, estimate: Estimate) -> NDArray[np.float64]:
    """Log of the predicted throughput in the objective's terms, up to a constant, shape (N,)."""
    log_tokens = np.log(np.atleast_1d(np.asarray(estimate.tokens_per_s, dtype=np.float64)))
    return np.asarray(log_tokens - log_cost(problem.objective, problem.space.table))


def log_cost(objective: Objective, table: ConfigTable) -> NDArray[np.float64]:
    """Log of what a second of each config costs, up to a constant: ranks where cost counts, else nothing; shape (N,)."""
    if objective.metric == "cost":
        return np.asarray(np.log(table.world_size))
    return np.zeros(len(table))


def slope(objective: Objective, *, rewarded: bool) -> float:
    """Change of the score with the log of the throughput."""
    return 1.0 - objective.stability_weight if rewarded else 1.0


def rest_of(trial: Trial, objective: Objective) -> float:
    """What the trial's score says beyond its throughput."""
    if trial.measurement is None or trial.reward is None:
        return 0.0
    throughput = np.log(trial.measurement.tokens_per_s) - log_cost(objective, ConfigTable.of([trial.config]))[0]
    return float(score(trial) - slope(objective, rewarded=True) * throughput)
