"""Bayesian search: proposes the candidate of greatest expected improvement that probably runs.

    argmax over eligible candidates of    log EI + log P(runs)        EI: expected improvement of the score over the best so far

Both terms come from `surrogate.Posterior`, averaged over its models. The search stops on the same
average (`expected_gain`), so it must propose by it too: by the likeliest model alone it would never
try what only the other models expect to be good, while their expectation keeps the search from
stopping. Pending trials count as if they came out at their predicted mean, which spreads a batch
out (kriging believer: Ginsbourger et al. 2010). Failures have no score; they inform P(runs).

Before the first measurement only configs that run with probability `SURE` or more are candidates,
where there are any; there is no best score yet, and the median prediction of the candidates that
probably run takes its place. The first pick is the model's and not a rule of thumb's: in the replay
benchmark the rule needs twice the trials (research/measurements.md).

The searcher does not choose how long a trial runs: every trial starts with a few steps and gets
more only while they can change the outcome (`autotune.stopping`). A trial of few steps counts with
the spread of its step times.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.search.model_based import ModelBasedSearcher
from autotune.search.surrogate.acquisition import log_mixture_improvement
from autotune.spec.texts.as_text import format_gain

SURE = 0.75
"""probability of running from which a config may be the first that is tried: an answer comes before
a bet. In replays of published sweeps it changes nothing"""


class BayesianSearcher(ModelBasedSearcher):
    """Bayesian optimization: expected improvement times the probability that the config runs."""

    def propose(self) -> tuple[int, str] | None:
        candidates = self.eligible()
        if not len(candidates):
            return None
        log_weights, mean, sd, runs = self.predict(candidates)
        best = self.best_score()
        if best is None:
            best = float(np.median(mean[0][runs >= min(math.log(0.5), float(np.max(runs)))]))
            likely = runs >= min(math.log(SURE), float(np.max(runs)))
            candidates, mean, sd, runs = (
                candidates[likely],
                mean[:, likely],
                sd[:, likely],
                runs[likely],
            )
        gain = log_mixture_improvement(log_weights, mean, sd, best)
        at = int(np.argmax(gain + runs))
        expected = self.as_throughput_gain(math.exp(gain[at]))
        said = (
            f"expected gain {expected:.1%} over"
            if expected < 1
            else f"expected {format_gain(1 + expected)} of"
        )
        return int(
            candidates[at]
        ), f"{said} the best so far, {math.exp(runs[at]):.0%} likely to run"
