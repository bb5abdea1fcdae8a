"""When the search stops by itself: when further trials are expected to gain less than `min_gain`, or, where the tokens of the training are known
(`train_tokens`), when they would take longer than they would save.

    k trials pay when    T g_k / (1 + g_k) > k c

`T`: seconds of the training with the best config so far; `g_k`: expected relative gain of the best of the next k trials; `c`: seconds of a trial, the
mean so far. Trials and training occupy the same cluster, whatever part of it they use. The search goes on while some k up to `Searcher.LOOKAHEAD` pays. That is
sampling with its economics, after Chick & Frazier 2012 ("Sequential sampling with economics of selection procedures"), with the expected
maximum of k candidates in place of their diffusion limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.reward import tokens_per_s
from autotune.spec import Budget, Trial
from autotune.spec.duration import format_duration
from autotune.study.controller.trial_index import TrialIndex

if TYPE_CHECKING:
    from autotune.search import Searcher


def training_s(trial: Trial, tokens: float) -> float:
    """Seconds of a training on so many tokens, as fast as this trial was. nan when nothing was measured."""
    return tokens / tokens_per_s(trial)


def not_worth_it(searcher: Searcher, index: TrialIndex, budget: Budget) -> str:
    """Why no further trial is worth asking for, in words; empty while one is, or the searcher cannot say."""
    if index.best is None or index.asked == 0 or (budget.min_gain == 0 and budget.train_tokens is None):
        return ""
    gain = searcher.expected_gain()
    if gain is None:
        return ""
    if gain == 0 and not len(searcher.eligible()):
        return searcher.nothing_left()
    if budget.train_tokens is not None:
        return _costs_more(searcher, gain, index.trial_s, training_s(index.best, budget.train_tokens))
    if gain >= budget.min_gain:
        return ""
    return (
        f"the next trials, of about {format_duration(index.trial_s)} each, are expected to gain {gain:.2%}, "
        f"less than the min_gain of {budget.min_gain:.2%}"
    )


def _costs_more(searcher: Searcher, gain: float, trial_s: float, training: float) -> str:
    """Why no number of further trials pays; `gain`: of the next `LOOKAHEAD`."""

    def saved_s(gain: float) -> float:
        return training * gain / (1 + gain)

    all_s = searcher.LOOKAHEAD * trial_s
    if saved_s(gain) > all_s:
        return ""
    if any(saved_s(searcher.expected_gain(k) or 0.0) > k * trial_s for k in range(1, searcher.LOOKAHEAD)):
        return ""
    return (
        f"the next {searcher.LOOKAHEAD} trials would take about {format_duration(all_s)} and are expected to save {format_duration(saved_s(gain))} "
        f"of a training of {format_duration(training)}"
    )
