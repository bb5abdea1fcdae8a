"""Reinforcement learning: a policy chooses the next candidate and is adapted by what comes of it (REINFORCE: Williams 1992).

    state     predictions, outcomes so far, all relative to one another (`policy.View`)
    action    a candidate that is free and that no failure rules out
    reward    how far the trial's score lies above the best before it; a failure costs as much as a trial that is half as fast

The policy was trained on thousands of simulated clusters, where it learnt how far to trust predictions, what to do after a failure and when to look
elsewhere. In a study it takes the most probable action, so that it replays; each outcome moves its weights by one small step.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autotune.search.model_based import ModelBasedSearcher
from autotune.search.objective_model import predicted_worth
from autotune.search.policy import Policy, View
from autotune.search.searcher import FREE, Problem, score
from autotune.spec import FailureKind, Trial

STEP = 0.05
"""step of the weights per trial and unit of reward"""
LOWEST, HIGHEST = -math.log(2.0), math.log(2.0)
"""bounds of the reward, and what a failure costs"""


class ReinforceSearcher(ModelBasedSearcher):
    """The most probable action of a pre-trained policy, which learns on. When it is time to stop, its beliefs say."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._estimate = problem.predict()
        self._policy = Policy.trained()
        self._capacity_bytes = problem.space.workload.cluster.gpu.memory_bytes
        worth = predicted_worth(problem, self._estimate)
        self._view = View.of(self._estimate, worth, problem.space.coordinates(), self._capacity_bytes)
        self._tried: NDArray[np.bool_] = np.zeros(len(problem.space), dtype=np.bool_)

    def propose(self) -> tuple[int, str] | None:
        allowed = (self.state == FREE) & ~self.ruled_out
        if not allowed.any():
            return None
        logs = self._policy.log_probabilities(self._view.features(), allowed)
        index = int(np.argmax(logs))
        return index, f"the policy's choice among {int(allowed.sum())}, with probability {math.exp(logs[index]):.0%}"

    def learn(self, index: int | None, trial: Trial) -> None:
        if self.problem.objective.metric == "goodput":
            self._view.worth = predicted_worth(self.problem, self._estimate, [trial for _, trial in self.trials])
        if index is None:
            return
        if not self._tried[index]:
            self._adapt(index, trial)
        self._tried[index] = True
        peak = trial.measurement.peak_memory_bytes if trial.is_measured and trial.measurement else None
        ran_out = trial.failure is not None and trial.failure.kind is FailureKind.OUT_OF_MEMORY
        self._view.add(
            index,
            score(trial) if trial.is_measured else math.nan,
            log_peak_ratio=math.log(peak / self._capacity_bytes) if peak else None,
            out_of_memory=ran_out,
        )

    def _adapt(self, index: int, trial: Trial) -> None:
        """One step of the weights along the gradient of the log probability of what was done, times its reward."""
        best = self._view.best
        if best is None:
            return
        reward = LOWEST
        if trial.is_measured:
            reward = min(max(score(trial) - self._view.scores[best], LOWEST), HIGHEST)
        allowed = ~self._tried
        if allowed[index] and allowed.sum() > 1:
            direction = self._policy.gradient(self._view.features(), allowed, index)
            self._policy = self._policy.moved(direction, STEP * reward)
