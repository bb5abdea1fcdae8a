"""Bayesian search: proposes the candidate with the greatest expected improvement, weighted by the
probability that it runs.

    argmax over eligible candidates of    log EI + log P(runs)        EI: expected improvement of the score over the best so far

Both terms come from `surrogate.Posterior`, averaged over its models. The stop rule uses the same
average (`expected_gain`), so proposals must use it too: a search by the likeliest model alone would
never try configs that only the other models expect to be good, while those models keep the search
from stopping. Pending trials count as if their result were the predicted mean, which diversifies a
batch (kriging believer: Ginsbourger et al. 2010). Failures have no score; they update P(runs).

Before the first measurement, only configs that run with a probability of at least `SURE` are
candidates, if there are any. As there is no best score yet, the median prediction of the candidates
that probably run is used. The first pick comes from the model and not from the rule of thumb, which
needs twice as many trials in the replay benchmark (research/measurements.md).

The searcher does not choose the length of a trial: every trial starts with a few steps and gets
more only while they can change the outcome (`autotune.stopping`). The noise of a short trial is the
spread of its step times.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.search.model_based import ModelBasedSearcher
from autotune.search.surrogate.acquisition import log_mixture_improvement
from autotune.spec.texts.as_text import format_gain

SURE = 0.75
"""minimum probability that the first config runs, so that a study has a result early. In replays of
published sweeps it makes no difference"""


class BayesianSearcher(ModelBasedSearcher):
    """Bayesian optimization: expected improvement times the probability that the config runs."""

    def propose(self) -> tuple[int, str] | None:
        candidates = self.eligible()
        if not len(candidates):
            return None
        log_weights, mean, sd, log_runs = self.predict(candidates)
        best = self.best_score()
        if best is None:
            best = float(
                np.median(mean[0][log_runs >= min(math.log(0.5), float(np.max(log_runs)))])
            )
            likely = log_runs >= min(math.log(SURE), float(np.max(log_runs)))
            candidates, log_runs = candidates[likely], log_runs[likely]
            mean, sd = mean[:, likely], sd[:, likely]
        log_gain = log_mixture_improvement(log_weights, mean, sd, best)
        at = int(np.argmax(log_gain + log_runs))
        gain = self.as_throughput_gain(math.exp(log_gain[at]))
        text = (
            f"expected gain {gain:.1%} over" if gain < 1 else f"expected {format_gain(1 + gain)} of"
        )
        reason = f"{text} the best so far, {math.exp(log_runs[at]):.0%} likely to run"
        return int(candidates[at]), reason
