"""Reinforcement learning: a policy chooses the next candidate and is adapted to its result
(REINFORCE: Williams 1992).

    state     predictions and results so far, all dimensionless (`policy.SearchState`)
    action    an eligible candidate
    reward    the trial's score minus the best score before it, clipped to [-log 2, log 2]; a failure costs log 2, like a trial at half the speed

The policy was trained on thousands of simulated clusters, where it learned how far to trust
predictions, what to do after a failure, and when to explore. In a study it takes the most probable
action, so that a resumed study repeats its choices. Each result changes its weights by one small
step.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autotune.search.model_based import ModelBasedSearcher
from autotune.search.objective_model import predicted_objective
from autotune.search.policy import Policy, SearchState
from autotune.search.searcher import FREE, Problem, score
from autotune.spec import FailureKind, Trial

STEP = 0.05
"""learning rate: step of the weights per trial and unit of reward"""
LOWEST, HIGHEST = -math.log(2.0), math.log(2.0)
"""bounds of the reward; a failure gets the lower one"""


class ReinforceSearcher(ModelBasedSearcher):
    """A pre-trained policy, adapted during the study; the Bayesian model only decides when to
    stop."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._estimate = problem.predict()
        self._capacity_bytes = problem.space.workload.cluster.gpu.memory_bytes
        self._begin()

    def _begin(self) -> None:
        """Reset policy and state to those before any trial."""
        problem = self.problem
        self._policy = Policy.trained()
        predicted = predicted_objective(problem, self._estimate)
        self._search_state = SearchState.of(
            self._estimate, predicted, problem.space.coordinates(), self._capacity_bytes
        )
        self._tried: NDArray[np.bool_] = np.zeros(len(problem.space), dtype=np.bool_)

    def relearn(self) -> None:
        super().relearn()
        self._begin()
        for index, trial in self.trials:
            self.learn(index, trial)

    def propose(self) -> tuple[int, str] | None:
        allowed = (self.state == FREE) & ~self.ruled_out
        if not allowed.any():
            return None
        logs = self._policy.log_probabilities(self._search_state.features(), allowed)
        index = int(np.argmax(logs))
        return (
            index,
            f"chosen by the policy from {int(allowed.sum())} candidates, with probability {math.exp(logs[index]):.0%}",
        )

    def learn(self, index: int | None, trial: Trial) -> None:
        if self.problem.objective.metric == "goodput":
            self._search_state.predicted = predicted_objective(
                self.problem, self._estimate, [trial for _, trial in self.trials]
            )
        if index is None:
            return
        if not self._tried[index]:
            self._adapt(index, trial)
        self._tried[index] = True
        peak = trial.peak_memory_bytes if trial.is_measured else None
        ran_out = trial.failure is not None and trial.failure.kind is FailureKind.OUT_OF_MEMORY
        self._search_state.add(
            index,
            score(trial) if trial.is_measured else math.nan,
            log_peak_ratio=math.log(peak / self._capacity_bytes) if peak else None,
            out_of_memory=ran_out,
        )

    def _adapt(self, index: int, trial: Trial) -> None:
        """Move the weights along the gradient of the action's log probability, scaled by its
        reward."""
        best = self._search_state.best
        if best is None:
            return
        reward = LOWEST
        if trial.is_measured:
            reward = min(max(score(trial) - self._search_state.scores[best], LOWEST), HIGHEST)
        allowed = ~self._tried
        if allowed[index] and allowed.sum() > 1:
            direction = self._policy.gradient(self._search_state.features(), allowed, index)
            self._policy = self._policy.moved(direction, STEP * reward)
