"""Predicted memory as a constraint of any Optuna sampler, so that it learns to stay clear of configs that would run out of memory.

    constraint(config) = Q(P(OOM))          zero or less: the config is expected to fit, as a plan says

    P(OOM)   predicted probability that the config runs out of memory
    Q        quantile of the standard normal distribution: predicted memory is log-normal, so this is ln(predicted need / usable memory) in standard deviations

It grows steadily with the memory that a config needs, which suits samplers that model the constraint (`GPSampler`) as well as those that compare violations
(`TPESampler`, `NSGAIISampler`). It ends at plus and minus 5, where the probability is as good as certain.

    limit = MemoryConstraint(workload)
    limit.set(trial, config)                        in the objective, before the config is run
    TPESampler(constraints_func=constraints)        needed with Optuna 4 only: from 5 on samplers find what was set
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.special import ndtri

from autotune.cost import Calibration, calibration_for, estimate
from autotune.spec import ParallelConfig, Workload

if TYPE_CHECKING:
    import optuna

NAME: Final = "predicted_memory"
"""by which Optuna stores the constraint"""
FARTHEST: Final = 5.0
"""largest constraint either way, in standard deviations: beyond it the probability has no more digits"""


class MemoryConstraint:
    """The predicted memory of a workload's configs against what the GPU has."""

    def __init__(self, workload: Workload, *, calibration: Calibration | None = None) -> None:
        """`calibration`: constants measured on the cluster (None: those that ship for its GPU and trainer)."""
        self._workload = workload
        self._constants = calibration_for(workload) if calibration is None else calibration

    def excess(self, config: ParallelConfig) -> float:
        """Predicted need above the usable memory, in standard deviations of the prediction; zero or less where the config is expected to fit."""
        predicted = estimate(self._workload, config, calibration=self._constants)
        return float(np.clip(ndtri(float(predicted.oom_probability)), -FARTHEST, FARTHEST))

    def set(self, trial: optuna.Trial, config: ParallelConfig) -> float:
        """Sets the constraint of a running trial, before its config is run, and returns the excess. It is kept as a user attribute of the trial too."""
        excess = self.excess(config)
        trial.set_user_attr(NAME, excess)
        if hasattr(trial, "set_constraint"):
            trial.set_constraint(NAME, excess)
        return excess


def constraints(trial: optuna.trial.FrozenTrial) -> tuple[float, ...]:
    """The `constraints_func` of a sampler of Optuna 4: what was set; infinite for a trial that was pruned before anything was."""
    return (float(trial.user_attrs.get(NAME, math.inf)),)
