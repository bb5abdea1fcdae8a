"""Bayesian search: the cost model's prediction, corrected by every trial, decides what is worth trying next.

Of the candidates that no failure rules out, the next is the one of greatest

    log EI + log P(it runs)          EI: expected improvement of the score over the best so far

where both come from `surrogate.Posterior`, averaged over its models: what the search waits for before it stops must be what it tries. By the likeliest
model alone it would pass over what only the others expect; their doubt kept it going, and no trial settled it. Pending trials count as if they came
out as believed, which makes a batch spread out (kriging believer: Ginsbourger et al. 2010). Failures are never scored; they teach what runs.

Before anything is measured there is no best to improve on; the median of what probably runs stands in for it. The first pick is the model's
own rather than a rule of thumb's: in the replay the rule needs twice the trials (tests/benchmarks/RESULTS.md); it is a searcher of its own.

Fidelity is not a choice of the searcher: every trial begins with a few steps and gets more only while they can change something
(`autotune.stopping`), and a trial of few steps is believed by the spread that these have.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.search.model_based import ModelBasedSearcher
from autotune.search.surrogate.acquisition import log_averaged_improvement


class BayesianSearcher(ModelBasedSearcher):
    """Greatest expected improvement that probably runs, first."""

    def propose(self) -> tuple[int, str] | None:
        candidates = self.worth_trying()
        if not len(candidates):
            return None
        log_weights, mean, sd, runs = self.believed(candidates)
        best = self.best_score()
        if best is None:
            best = float(np.median(mean[0][runs >= min(math.log(0.5), float(np.max(runs)))]))
        gain = log_averaged_improvement(log_weights, mean, sd, best)
        at = int(np.argmax(gain + runs))
        return int(candidates[at]), (
            f"expected gain {self.as_speed(math.exp(gain[at])):.1%} over the best so far, "
            f"runs with probability {math.exp(runs[at]):.0%}"
        )
