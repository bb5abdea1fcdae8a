"""What further trials are worth. A search ends by itself when they are expected to bring less than was asked for, or to save the training less
than they take.

    k trials are worth their cost when    T g_k / (1 + g_k) > k c

`T`: rank-seconds of the training at the best config so far; `g_k`: expected relative gain of the best of the next k trials; `c`: rank-seconds of
a trial, the mean so far. The search goes on while some k up to `Searcher.AHEAD` is worth it: the knowledge gradient of a sequence of
measurements against its cost (Chick & Frazier 2012, "Sequential sampling with economics of selection procedures", section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.controller.book import TrialBook
from autotune.spec import Budget, Trial

if TYPE_CHECKING:
    from autotune.search import Searcher


def training_gpu_s(trial: Trial, tokens: float) -> float:
    """Rank-seconds of a training on so many tokens, as fast as this trial was. nan when nothing was measured."""
    found = trial.measurement
    return tokens / found.tokens_per_s * found.num_ranks if found is not None else float("nan")


def not_worth_it(searcher: Searcher, book: TrialBook, budget: Budget) -> str:
    """Why no further trial is worth asking for, in words; empty while one is, or the searcher cannot say."""
    if book.best is None or book.asked == 0 or (budget.min_gain == 0 and budget.train_tokens is None):
        return ""
    gain = searcher.expected_gain()
    if gain is None:
        return ""
    ahead = f"the trials that would come next, of about {book.trial_gpu_s:.3g} rank-s each, are expected to"
    if gain < budget.min_gain:
        if not len(searcher.worth_trying()):
            return searcher.nothing_left()
        return f"{ahead} gain {gain:.2%}, which is under the {budget.min_gain:.2%} asked for"
    if budget.train_tokens is None:
        return ""
    training = training_gpu_s(book.best, budget.train_tokens)
    for trials in range(1, searcher.AHEAD + 1):
        gain = searcher.expected_gain(trials) or 0.0
        if training * gain / (1 + gain) > trials * book.trial_gpu_s:
            return ""
    return f"{ahead} save the training less than they take: {gain:.2%} of its {training:.3g} rank-s"
