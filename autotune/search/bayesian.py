"""Bayesian search: the cost model's prediction, corrected by every trial, decides what is worth trying next.

Of the candidates that no failure rules out, the next is the one of greatest

    log EI + log P(it runs)          EI: expected improvement of the score over the best so far

where both come from `surrogate.Beliefs`, under the most probable of its models. Pending trials count as if they came out as believed, which makes a batch spread out
(kriging believer: Ginsbourger et al. 2010). Failures are never scored; they teach what runs.

What all candidates together may still bring, averaged over all models (`surrogate.averaged`), says when it is time to stop: choosing by a wrong model
costs a trial, stopping by one costs the study. One more trial may be worth little where twenty candidates are each a little likely to be far better.

Before anything is measured there is no best to improve on; the median of what probably runs stands in for it. The first pick is the model's
own rather than a rule of thumb's: in the replay the rule needs twice the trials (tests/benchmarks/RESULTS.md); it is a searcher of its own.

There is no lower fidelity. A trial is a few optimizer steps that end as soon as their median is known well enough (`autotune.stopping`), nearly
all of its cost is start-up, and out-of-memory shows in the first step: fewer steps would save little and blur what the model learns from.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from autotune.search.searcher import Problem, Searcher, score
from autotune.search.surrogate.beliefs import Beliefs
from autotune.search.surrogate.improvement import expected_maximum, log_expected_improvement
from autotune.spec import Trial

Array = NDArray[np.float64]

LEFT = 8
"""candidates that what is left to gain is reckoned over, those of greatest expected improvement: a handful of further trials. Among thousands
of configs that differ by chance some are always better than the best found, but a search for them does not pay."""


class BayesianSearcher(Searcher):
    """Greatest expected improvement that probably runs, first."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._beliefs = Beliefs(problem)
        self._stale = False

    def learn(self, index: int | None, trial: Trial) -> None:
        self._stale = True

    def propose(self) -> tuple[int, str] | None:
        candidates = self.worth_trying()
        if not len(candidates):
            return None
        log_weights, mean, sd, runs = self._believed(candidates)
        best = self._best()
        if best is None:
            best = float(np.median(mean[0][runs >= min(math.log(0.5), float(np.max(runs)))]))
        likeliest = int(np.argmax(log_weights))
        gain = log_expected_improvement(mean[likeliest], sd[likeliest], best)
        at = int(np.argmax(gain + runs))
        slope = self._beliefs.slope
        return int(candidates[at]), (
            f"expected gain {math.expm1(math.exp(gain[at]) / slope):.1%} over the best so far, "
            f"runs with probability {math.exp(runs[at]):.0%}"
        )

    def expected_gain(self) -> float | None:
        """Expected relative improvement of the throughput by the best of the next `LEFT` trials; None before anything was measured."""
        best = self._best()
        if best is None:
            return None
        candidates = self.worth_trying()
        if not len(candidates):
            return 0.0
        log_weights, mean, sd, runs = self._believed(candidates)
        likely = np.argsort(
            -(logsumexp(log_weights[:, None] + log_expected_improvement(mean, sd, best), axis=0) + runs)
        )[:LEFT]
        gains = [
            expected_maximum(m[likely], s[likely], np.exp(runs[likely]), best) for m, s in zip(mean, sd, strict=True)
        ]
        return math.expm1(float(np.exp(log_weights) @ gains) / max(self._beliefs.slope, 1e-3))

    def _believed(self, candidates: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
        """Log weights of the models, shape (M,), mean and standard deviation of the scores in each, shape (M, N), and log P(it runs), shape (N,)."""
        if self._stale:
            self._beliefs.update(self.trials)
            self._stale = False
        return *self._beliefs.score(candidates, self.pending()), self._beliefs.log_runs(candidates)

    def _best(self) -> float | None:
        """Best score that a candidate or the baseline reached."""
        return max((score(trial) for _, trial in self.trials if trial.is_measured), default=None)
