"""Searchers with beliefs about every candidate: they know what further trials may still bring.

What all candidates together may bring, averaged over all models (`surrogate.averaged`), says when it is time to stop: choosing by a wrong model
costs a trial, stopping by one costs the study. One more trial may be worth little where twenty candidates are each a little likely to be far better.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.search.searcher import Problem, Searcher, score
from autotune.search.surrogate.acquisition import expected_maximum, log_averaged_improvement
from autotune.search.surrogate.posterior import Posterior

Array = NDArray[np.float64]


class ModelBasedSearcher(Searcher):
    """Keeps `Posterior`, whatever it proposes by."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._conditioned_on = 0

    def expected_gain(self, trials: int = Searcher.AHEAD) -> float | None:
        """Expected relative improvement of the throughput by the best of the next `trials`, the candidates of greatest expected improvement; 0 when no
        candidate is left; None before anything was measured."""
        best, candidates = self.best_score(), self.worth_trying()
        if best is None:
            return None
        if not len(candidates):
            return 0.0
        log_weights, mean, sd, runs = self.believed(candidates)
        likely = np.argsort(-(log_averaged_improvement(log_weights, mean, sd, best) + runs))[:trials]
        gains = [
            expected_maximum(m[likely], s[likely], np.exp(runs[likely]), best) for m, s in zip(mean, sd, strict=True)
        ]
        return self.as_speed(float(np.exp(log_weights) @ gains))

    def as_speed(self, gain: float) -> float:
        """What a gain of the score is as a relative one of the throughput; where that counts for nothing: as it is."""
        slope = self.beliefs.slope
        return math.expm1(gain / slope) if slope > 0 else gain

    @property
    def beliefs(self) -> Posterior:
        """What is believed after the trials so far."""
        if self._conditioned_on != len(self.trials):
            self._beliefs.update(self.trials)
            self._conditioned_on = len(self.trials)
        return self._beliefs

    def believed(self, candidates: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        """Log weights of the models, shape (M,), mean and standard deviation of the scores in each, shape (M, N), and log P(it runs), shape (N,)."""
        return *self.beliefs.score(candidates, self.pending()), self.beliefs.log_runs(candidates)

    def best_score(self) -> float | None:
        """Best score that a candidate or the baseline reached; None before anything was measured."""
        return max((score(trial) for _, trial in self.trials if trial.is_measured), default=None)

    @cached_property
    def _beliefs(self) -> Posterior:
        return Posterior(self.problem)
