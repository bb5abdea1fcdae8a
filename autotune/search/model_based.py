"""The base class of searchers with a posterior for every candidate, which estimate the gain of
further trials.

The estimate averages over all models (`surrogate.model_average`) and looks several trials ahead,
because stopping by a wrong model costs more than choosing one trial by it. And the expected gain of
a single trial is small even if each of twenty candidates has a small chance of being far better.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.search.history import informed
from autotune.search.searcher import Problem, Searcher, score
from autotune.search.surrogate.acquisition import expected_maximum, log_mixture_improvement
from autotune.search.surrogate.posterior import Posterior

Array = NDArray[np.float64]


class ModelBasedSearcher(Searcher):
    """Has a `Posterior` of all candidates; subclasses implement `propose`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._conditioned_on = 0

    def relearn(self) -> None:
        self._conditioned_on = -1

    def expected_gain(self, trials: int = Searcher.LOOKAHEAD) -> float | None:
        """Expected relative gain of throughput from the best of the `trials` candidates with the
        greatest expected improvement. 0 if no candidate is left; None before the first
        measurement."""
        best, candidates = self.best_score(), self.eligible()
        if best is None:
            return None
        if not len(candidates):
            return 0.0
        log_weights, mean, sd, runs = self.predict(candidates)
        likely = np.argsort(-(log_mixture_improvement(log_weights, mean, sd, best) + runs))[:trials]
        gains = [
            expected_maximum(m[likely], s[likely], np.exp(runs[likely]), best)
            for m, s in zip(mean, sd, strict=True)
        ]
        return self.as_throughput_gain(float(np.exp(log_weights) @ gains))

    def as_throughput_gain(self, gain: float) -> float:
        """Convert a gain of the score to a relative gain of throughput; unchanged if the score does
        not depend on throughput."""
        slope = self.posterior.slope
        return math.expm1(gain / slope) if slope > 0 else gain

    @property
    def posterior(self) -> Posterior:
        """The posterior given all trials so far."""
        if self._conditioned_on != len(self.trials):
            self._posterior.update(self.trials)
            self._conditioned_on = len(self.trials)
        return self._posterior

    def predict(self, candidates: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        """Log weights of the models, shape (M,); mean and standard deviation of the scores in each
        model, shape (M, N); log P(runs), shape (N,)."""
        log_weights, mean, sd = self.posterior.score(candidates, self.pending())
        return log_weights, mean, sd, self.posterior.log_runs(candidates)

    def best_score(self) -> float | None:
        """Best score of all measured trials, including the baseline; None before the first
        measurement."""
        return max((score(trial) for _, trial in self.trials if trial.is_measured), default=None)

    @cached_property
    def _posterior(self) -> Posterior:
        return Posterior(informed(self.problem))
